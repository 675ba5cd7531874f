//go:build !amd64

package shmchannel

import "sync/atomic"

// put stores v in a word of shared memory. The caller stores a sequence number before the first call of put and after the last call, and
// other members must see these stores in this order. put uses an atomic store, because this CPU may reorder plain stores.
func put(w *atomic.Uint64, v uint64) { w.Store(v) }
