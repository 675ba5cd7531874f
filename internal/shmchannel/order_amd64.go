package shmchannel

import (
	"sync/atomic"
	"unsafe"
)

// put stores a word of content. The caller stores the content's sequence number before and after the content. A plain store is enough,
// because this processor keeps the order of stores.
func put(w *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(w)) = v }
