package shmchannel

import (
	"sync/atomic"
	"unsafe"
)

// put stores v in a word of shared memory. The caller stores 0 in an entry's number before the first call of put, and the
// frame's number after the last call: a member that reads this number must see the stores between them. A plain store is enough, because other CPUs see the stores of an amd64 CPU in the
// order in which that CPU made them.
func put(w *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(w)) = v }
