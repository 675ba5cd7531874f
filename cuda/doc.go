// Package cuda is the CUDA driver API for Go: typed, without policy, and
// without a toolkit.
//
// It builds where no CUDA is installed and starts where no GPU is: the driver
// library, libcuda.so.1, is opened when it is first needed, and a machine that
// has none gets [ErrNoDriver]. A build without cgo works too and always gets
// that error.
//
// # Objects
//
// A [Device] is a plain value. [Device.Retain] gives a [Context], the device's
// primary context, which is the one that the CUDA runtime, and so every Python
// library, uses. Streams, events, memory pools and the rest are made from it.
// Specs ([MemPoolSpec], [EventSpec]) are plain data with a Validate method;
// the objects made from them own driver resources and have a Close method.
//
// Close may be called more than once and at any time: later calls on the
// object fail with [ErrClosed], calls under way in other goroutines end first,
// and a context outlives the objects that were made from it.
//
// # Threads
//
// CUDA keeps a stack of current contexts in every OS thread and goroutines
// move between threads. Every method here pushes its context, does its work
// and pops it in one cgo call, so goroutines need not be locked to threads and
// a program's own CUDA state is left as it was.
//
// # Errors
//
// Every failure of a driver call is an [*Error] that names the call, the device
// and the [Result]; Results are themselves errors and serve as the sentinels:
//
//	if errors.Is(err, cuda.ErrOutOfMemory) { … }
//
// Sizes are bytes and uint64 throughout.
package cuda
