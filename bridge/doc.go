// Package bridge is the Go client of a poolbridge service: a program uses it to work with memory that the service owns, without copying the
// memory. It speaks the protocol of docs/protocol.md over a Unix socket.
//
// [Dial] connects a program to a service and opens a session. If the service dies and its guard starts the next one, the session goes on. It
// ends with [Client.Close], with the process, or when the connection is lost for good: [ErrDisconnected]. At that time the session's leases
// end, and the service removes the session's names, except names that were published with Keep.
//
//	client, err := bridge.Dial(ctx, bridge.DefaultSocket())
//
// # Buffers
//
// Memory comes from a [Pool]: [Client.CreatePool] makes a pool, [Client.OpenPool] opens the pool of another program, and
// [Client.EnsurePool] opens a pool, or makes the pool if it does not exist. [Pool.Allocate] makes a buffer and returns a write [Lease] on
// it. [Lease.CopyFrom], [Lease.Bytes] and [Lease.Pointer] give access to the buffer's memory. [Lease.Publish] gives the buffer a name, and
// [Client.Get] leases the buffer of a name, in any process. [Lease.Release] ends a lease. When all leases on a buffer have ended and the
// buffer has no name any more, the service uses the memory again.
//
// # Streams
//
// A [Channel] carries buffers from producers to consumers, as frames. [Client.CreateChannel] makes a channel and [Client.OpenChannel] opens
// a channel that exists. [Channel.Publisher] makes a [Publisher]: [Publisher.Loan] lends memory for a frame, and [Publisher.Publish]
// publishes it, without a request to the service. [Channel.Publish] publishes the buffer of any write lease, which is one request for each
// buffer. [Client.Subscribe] waits for a channel, and [Subscription.Frames] is a loop over its frames, from the first.
//
// # Giving back
//
// A program gives back a [Client], a [Publisher] and an [Arena] by Close, and a [Lease], a [Frame] and an [Exported] by Release. Each of these
// returns an error, can be deferred, and a second call changes nothing, also after the client's end. A [Subscription] ends with its loop;
// without a loop, call [Subscription.Close]. [Channel.Close] and [Pool.Destroy] take a context and act on all clients. Do not defer them: a
// channel and a pool stay for other programs until somebody calls them.
//
//	client, err := bridge.Dial(ctx, bridge.DefaultSocket())
//	if err != nil {
//		return err
//	}
//	defer client.Close() // and everything of this client
//
// # Time
//
// Only the context limits how long a call waits. If the context has no deadline, the call waits without limit. A call whose name begins
// with Try does not wait for other clients: it returns as soon as the service has answered. Only [Pool.TryAllocate] may wait some seconds, for
// memory that the service is already taking back. The context of such a call limits only the wait for this answer. [Dial] waits for a service only with [Dialer.Wait].
//
//	lease, err := client.TryGet(ctx, "weights", bridge.LeaseOptions{}) // ErrNotFound, ErrBusy
//
//	limited, cancel := context.WithTimeout(ctx, time.Second)
//	defer cancel()
//	lease, err := client.Get(limited, "weights", bridge.LeaseOptions{}) // at most 1 s
//
// At the deadline a call returns an error that wraps [context.DeadlineExceeded] and the error that the Try call would return. The second
// error says what the call waited for. The service gets the deadline with the request. If the service has not answered 250 ms after the
// deadline, the error wraps [context.DeadlineExceeded] only. If a context is cancelled, the call returns at once, and its error wraps
// [context.Canceled]. If the service grants something to a call that has already returned, the client gives the grant back to the service.
//
// # Errors
//
// An error wraps one of the Err variables of this package, or the context's error, and [errors.Is] finds which. The documentation of each
// call lists the errors that the call is expected to return. Every call that asks the service can also return [ErrDisconnected] and
// [ErrClosed], and the context's error.
//
// # Packages
//
// A client imports only this package. The types that describe pools, tensors, channels and fences are aliases of types of package mempool.
// Package mempool documents their fields: "go doc mempool.PoolSpec". A program that runs its own GPU work makes a [Queue] from its CUDA
// stream with [mempool.StreamQueue]. Package bridge/server is the service's side of the protocol; a client does not link that package. This
// package does not call CUDA itself.
package bridge
