//go:build !amd64

package shmchannel

import "sync/atomic"

// put stores a word of content whose sequence number is stored before and after it. It is an atomic store, because this processor may
// reorder plain ones.
func put(w *atomic.Uint64, v uint64) { w.Store(v) }
