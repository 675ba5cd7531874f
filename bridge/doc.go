// Package bridge is the Go client of a poolbridge service: it uses memory that the service owns, without a copy. It speaks the protocol of
// docs/protocol.md over a Unix socket.
//
// [Dial] connects a program to a service and opens a session. The session ends with [Client.Close] or with the process. The session's
// leases and names end at the same time.
//
//	client, err := bridge.Dial(ctx, bridge.DefaultSocket())
//
// # Buffers
//
// Memory comes from a [Pool]: [Client.CreatePool] makes one, [Client.OpenPool] opens the pool of another program, and [Client.EnsurePool]
// opens a pool or makes it if it does not exist. [Pool.Allocate] makes a buffer and returns a write [Lease] on it. [Lease.CopyFrom],
// [Lease.Bytes] and [Lease.Pointer] reach its memory. [Lease.Publish] gives the buffer a name, and [Client.Get] leases the buffer of a
// name, in any process. [Lease.Release] ends a lease. When all leases on a buffer have ended and the buffer has no name any more, the
// service uses the memory again.
//
// # Streams
//
// A [Channel] carries buffers from producers to consumers, as frames. [Client.CreateChannel] makes one and [Client.OpenChannel] opens it.
// [Channel.Publish] publishes the buffer of a write lease. [Channel.Frames] is a loop over the frames that a consumer gets.
//
// # Time
//
// The context alone bounds a call that waits. If it has no deadline, the call waits without limit. A call whose name begins with Try does
// not wait for other clients: it returns as soon as the service has answered. The context only bounds the wait for this answer.
//
//	lease, err := client.TryGet(ctx, "weights", bridge.LeaseOptions{}) // ErrNotFound or ErrBusy if it cannot be leased now
//
//	limited, cancel := context.WithTimeout(ctx, time.Second)
//	defer cancel()
//	lease, err := client.Get(limited, "weights", bridge.LeaseOptions{}) // waits for up to a second
//
// At the deadline a call returns an error that wraps [context.DeadlineExceeded] and the error that the Try call would return. The second
// error says what was missing. The service gets the deadline with the request. If the service has not answered 250 ms after the deadline,
// the error wraps [context.DeadlineExceeded] only. If a context is cancelled, the call returns at once, and its error wraps
// [context.Canceled]. If the service grants something to a call that has already returned, the client gives it back to the service.
//
// # Errors
//
// [errors.Is] finds what went wrong: one of the Err variables of this package, or the context's error. The documentation of each call
// lists the errors that the call is expected to return. Every call that asks the service can also return [ErrDisconnected] and
// [ErrClosed], and the context's error.
//
// # Packages
//
// A client imports this package alone. The types that describe pools, tensors, channels and fences are aliases of types of package
// mempool. Package mempool documents their fields: "go doc mempool.PoolSpec". A program with GPU work of its own makes a [Queue] of its
// stream by [mempool.StreamQueue]. Package bridge/server serves a service; a client does not link it. This package contains no CUDA.
package bridge
