// Package service owns pools of memory and knows who may use which part of them: blocks, buffers, leases, channels and
// sessions, with exact accounting. It has no sockets: package bridge has them. Memory itself, and the order of work on it,
// are package mempool's.
//
// A [Service] holds everything that lives as long as one epoch. A [Pool] is a bounded arena of one kind. A block is one
// allocation from the arena: it is made once, exported once and then recycled through size classes, so that steady work
// makes no driver calls. A buffer is one use of a block. A [Lease] is one session's hold on a buffer, and when a
// [Session] ends, however it ends, its leases end.
//
// Every error that an operation of this package returns wraps exactly one of the errors of package mempool, except those of
// a context.
package service
