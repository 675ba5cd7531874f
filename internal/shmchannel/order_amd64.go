package shmchannel

import (
	"sync/atomic"
	"unsafe"
)

// put stores a word of content, whose sequence number is stored before and after it. This processor keeps stores in order.
func put(w *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(w)) = v }
