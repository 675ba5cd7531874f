// Package mempool is memory that one process owns and many use, with the parts that both clients and services need: memory, its order,
// and plain data. Package service decides which session may use which memory.
//
// Memory comes through the interfaces [Arena] and [Allocation], and in other processes through [ImportedArena] and [Mapping]. There is one file
// for each [Kind]. Those files, and the ones for streams and events, call the CUDA driver through package cuda. Memory of kind [Host] needs
// neither a GPU nor a driver.
//
// A [Fence] identifies a point in the work of a process, by a word of a timeline. A timeline is a [Page] of shared memory. A [Clock] makes
// fences and lets a [Queue] reach them. An [Order] makes queues wait for them before memory is used.
package mempool
