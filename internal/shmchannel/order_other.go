//go:build !amd64

package shmchannel

import "sync/atomic"

// put stores a word of content. The caller stores the content's sequence number before and after the content. put uses an atomic store,
// because this processor may reorder plain stores.
func put(w *atomic.Uint64, v uint64) { w.Store(v) }
