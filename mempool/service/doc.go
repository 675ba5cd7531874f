// Package service owns pools of memory and decides which session may use which part of them. Its state is blocks, buffers, leases,
// channels and sessions, with exact accounting. Package bridge has the sockets; package mempool has the memory itself and the order of
// work on it.
//
// A [Service] holds everything that lives as long as one epoch. A [Pool] is a bounded arena of one kind. A block is one
// allocation from the arena: it is made once, exported once and then recycled through size classes, so that steady work
// makes no driver calls. A buffer is one use of a block. A [Lease] is one session's right to use a buffer. When a [Session]
// ends, for any reason, its leases end.
//
// Every error that an operation of this package returns wraps exactly one of the errors of package mempool, except those of
// a context.
package service
