// Package mempool owns memory and knows who may use which part of it: pools, blocks, buffers, leases and sessions, with
// exact accounting. It has no sockets: package bridge has them. Memory comes through the interfaces [mempool.Arena] and
// [mempool.Allocation], one file for each [mempool.Kind]; those files, and the streams and events that order work on it, call the CUDA
// driver through package cuda. Without a GPU memory of kind [mempool.Host] needs no driver.
//
// A [Service] holds everything that lives as long as one epoch. A [Pool] is a bounded arena of one kind. A block is one
// allocation from the arena: it is made once, exported once and then recycled through size classes, so that steady work
// makes no driver calls. A buffer is one use of a block. A [Lease] is one session's hold on a buffer, and when a
// [Session] ends, however it ends, its leases end.
package service
