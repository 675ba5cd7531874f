// Package service owns pools of memory and decides which session may use which memory. The package manages blocks, buffers, leases,
// channels and sessions, and counts exactly how much memory they use. Package bridge handles the sockets. Package mempool handles the
// memory itself and the order of the work on that memory.
//
// A [Service] holds the state of one epoch. A [Pool] is a bounded amount of one kind of memory. A block is one allocation from the pool's backing.
// The service makes and exports a block once. When no buffer uses the block any more, the service keeps it for a later buffer of the same
// size class. So clients that always need the same sizes cause no driver calls. A buffer is one use of a block. A [Lease] is one session's
// right to use a buffer. When a [Session] ends, for any reason, its leases end.
//
// Every error that an operation of this package returns wraps exactly one error of package mempool, except the errors of a context.
package service
