// Package cuda is the CUDA driver API for Go. It is typed, contains no policy,
// and needs no CUDA toolkit.
//
// The package builds without an installed CUDA, and programs that use the
// package start on machines without a GPU. The package opens the driver
// library, libcuda.so.1, at the first call that needs the library. If the
// library is missing, that call returns [ErrNoDriver]. In a build without cgo,
// every such call returns [ErrNoDriver].
//
// # Objects
//
// A [Device] is a plain value. [Device.Retain] returns a [Context], the
// device's primary context. The CUDA runtime, and so every Python library, uses
// the same context. Streams, events, memory pools and other objects are made
// from a Context. Specs ([MemPoolSpec], [EventSpec]) are plain data with a
// Validate method. The objects made from them own driver resources and have a
// Close method.
//
// Close may be called more than once and at any time. Later calls on the object
// fail with [ErrClosed]. If calls on the object are running in other
// goroutines, the object is destroyed after the last of these calls. A context
// outlives the objects that were made from it.
//
// # Threads
//
// CUDA keeps a stack of current contexts in every OS thread, and goroutines
// move between threads. Every method of this package pushes the context, does
// its work and pops the context in one cgo call. So goroutines need not be
// locked to threads, and the program's own CUDA state stays as it was.
//
// # Errors
//
// Every failed driver call returns an [*Error] that names the call, the device
// and the [Result]. Results are errors themselves, for use with [errors.Is]:
//
//	if errors.Is(err, cuda.ErrOutOfMemory) { … }
//
// All sizes are bytes, of type uint64.
package cuda
