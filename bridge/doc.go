// Package bridge is the Go client of a poolbridge service: it uses memory that the service owns, without a copy. It speaks the protocol of
// docs/protocol.md over a Unix socket.
//
// [Dial] connects a program to a service and opens a session. The session ends with [Client.Close] or with the process, and with it its leases
// and names.
//
//	client, err := bridge.Dial(ctx, bridge.DefaultSocket())
//
// # Buffers
//
// Memory comes from a [Pool]: [Client.CreatePool] makes one, [Client.OpenPool] opens that of another program, and [Client.EnsurePool] opens the one
// that is there or makes it. [Pool.Allocate] makes a buffer and returns a write [Lease] on it. [Lease.CopyFrom], [Lease.Bytes] and [Lease.Pointer] reach its memory.
// [Lease.Publish] gives the buffer a name, and [Client.Get] leases the buffer of a name, in any process. [Lease.Release] ends a lease. When all
// leases on a buffer have ended and its name is gone, its memory is used again.
//
// # Streams
//
// A [Channel] carries buffers from producers to consumers, as frames. [Client.CreateChannel] makes one and [Client.OpenChannel] opens it.
// [Channel.Publish] publishes the buffer of a write lease. [Channel.Frames] is a loop over the frames that a consumer gets.
//
// # Time
//
// The context alone bounds a call that waits. If it has no deadline, the call waits without limit. A call whose name begins with Try does not wait
// for other clients: it answers at once, and its context only bounds how long the service may take.
//
//	lease, err := client.TryGet(ctx, "weights", bridge.LeaseOptions{}) // ErrNotFound or ErrBusy if it cannot be leased now
//
//	limited, cancel := context.WithTimeout(ctx, time.Second)
//	defer cancel()
//	lease, err := client.Get(limited, "weights", bridge.LeaseOptions{}) // waits for up to a second
//
// At the deadline a call returns an error that wraps [context.DeadlineExceeded] and the error of the call with Try, which says what was missing. The
// service gets the deadline with the request. If it has not answered 250 ms after the deadline, the error wraps [context.DeadlineExceeded] only. If
// a context is cancelled, the call returns at once, and its error wraps [context.Canceled]. What the service grants to a call that has returned
// goes back to the service.
//
// # Errors
//
// [errors.Is] finds what went wrong: one of the Err variables of this package, or the context's error. The documentation of each call lists those
// that it is expected to return. Every call that asks the service can also return [ErrDisconnected] and [ErrClosed], and the context's error.
//
// # Packages
//
// A client imports this package alone: the types that describe pools, tensors, channels and fences are here, too, as aliases of those of package
// mempool. Their fields are documented there: "go doc mempool.PoolSpec". A program with GPU work of its own makes a [Queue] of its stream by [mempool.StreamQueue]. Package bridge/server serves a service; a client
// does not link it. This package contains no CUDA.
package bridge
