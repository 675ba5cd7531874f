//go:build !amd64

package shmchannel

import "sync/atomic"

// put stores a word of content, whose sequence number is stored before and after it. Atomic stores keep their order.
func put(w *atomic.Uint64, v uint64) { w.Store(v) }
