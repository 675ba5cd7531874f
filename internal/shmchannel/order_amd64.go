package shmchannel

import (
	"sync/atomic"
	"unsafe"
)

// put stores a word of content whose sequence number is stored before and after it. A plain store is enough: this processor keeps the order of
// stores.
func put(w *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(w)) = v }
