//go:build !amd64

package shmchannel

import "sync/atomic"

// put stores v in a word of shared memory. The caller stores 0 in an entry's number before the first call of put, and the
// frame's number after the last call: a member that reads this number must see the stores between them. put uses an atomic store, because this CPU may reorder plain stores.
func put(w *atomic.Uint64, v uint64) { w.Store(v) }
