// Package mempool provides memory that one process owns and many processes use. Clients and services both need this package: it has the
// memory, the order of work on the memory, and plain data. Package service decides which session may use which memory.
//
// The owning process gets memory through the interfaces [Arena] and [Allocation], other processes through [ImportedArena] and [Mapping].
// Each [Kind] has one source file. These files, and the files for streams and events, call the CUDA driver through package cuda. Memory of
// kind [Host] needs neither a GPU nor a driver.
//
// A [Fence] identifies a point in the work of a process, by a value of a word of a timeline. A timeline is a [Page] of shared memory. A
// [Clock] makes fences and lets a [Queue] reach the fences. An [Order] makes queues wait for fences before the queues use memory.
package mempool
