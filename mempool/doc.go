// Package mempool provides memory that one process owns and many processes use. Clients and services both use this package: it makes and
// maps the memory, keeps the work on the memory in order, and has the types of the plain data that clients and services exchange. Package
// service decides which session may use which memory.
//
// The process that owns the memory uses the interfaces [Backing] and [Allocation]. Other processes use the interfaces [ImportedBacking] and
// [Mapping]. Each [Kind] has one source file. The files of all kinds except [Host], and the files for streams and events, call the CUDA
// driver through package cuda. Memory of kind [Host] needs neither a GPU nor a driver.
//
// A [Fence] identifies a point in the work of a process, by a value of a word of a timeline. A timeline is a [Page] of shared memory that
// contains words. A [Clock] makes fences, and tells a [Queue] to mark a fence as reached when the work in the queue is done. An [Order]
// makes queues wait for fences before the queues use memory.
package mempool
