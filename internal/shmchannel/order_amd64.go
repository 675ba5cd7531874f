package shmchannel

import (
	"sync/atomic"
	"unsafe"
)

// put stores v in a word of shared memory. The caller stores a sequence number before the first call of put and after the last call, and
// other members must see these stores in this order. A plain store is enough, because other CPUs see the stores of an amd64 CPU in the
// order in which that CPU made them.
func put(w *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(w)) = v }
