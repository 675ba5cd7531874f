// Package cuda is the CUDA driver API for Go. It has Go types for the objects of the driver. The package calls the driver only when the program
// calls the package. It needs no CUDA toolkit.
//
// The package builds without an installed CUDA, and programs that use the package start on machines without a GPU. The package opens the driver
// library, libcuda.so.1, at the first call that needs the library. If the library is missing, that call returns [ErrNoDriver]. In a build
// without cgo, every such call returns [ErrNoDriver].
//
// # Objects
//
// A [Device] is a plain value. [Device.Retain] returns a [Context], the device's primary context. The CUDA runtime, and so every Python library,
// uses the same context. Methods of a Context make streams, events, memory pools and other objects. A spec ([MemPoolSpec], [EventSpec]) is plain
// data with a Validate method, and says how such an object is made. The objects own resources of the driver and have a Close method.
//
// A program may call Close more than once and at any time. After Close, calls of methods of the object fail with [ErrClosed]. If other
// goroutines are still in methods of the object, the object is destroyed when the last of these methods returns. The driver keeps a context
// until all objects that were made from it are closed.
//
// # Threads
//
// CUDA keeps a stack of current contexts in every OS thread, and goroutines move between threads. Every method of this package pushes the
// context, does its work and pops the context in one cgo call. So a goroutine need not be locked to a thread, and the package does not change
// the current context of the program's own CUDA code.
//
// # Errors
//
// Every failed driver call returns an [*Error] that names the call, the device and the [Result]. Results are errors themselves, for use with
// [errors.Is]:
//
//	if errors.Is(err, cuda.ErrOutOfMemory) { … }
//
// All sizes are bytes, of type uint64.
package cuda
