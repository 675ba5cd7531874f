// Package mempool is memory that one process owns and many use, as clients and services both know it: memory, its order, and
// plain data. Who may use which part of it is for package service to know.
//
// Memory comes through the interfaces [Arena] and [Allocation], and [ImportedArena] and [Mapping] in other processes, one file
// for each [Kind]. Those files, and the streams and events that order work on it, call the CUDA driver through package cuda.
// Without a GPU memory of kind [Host] needs no driver.
//
// A [Fence] names a moment in somebody's work: a word of a timeline, which is a [Page] of shared memory. A [Clock] makes
// fences and has a [Queue] reach them, and an [Order] has queues wait for them before memory is used.
package mempool
