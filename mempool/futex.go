package mempool

import (
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// These operations of futex(2) also work for a word in memory that several processes share. Such a word is not on the Go heap.
const (
	futexOpWait = 0
	futexOpWake = 1
)

// futexWait sleeps if the word is value, until another thread calls futexWake or the time limit has passed. futexWait may return early.
func futexWait(word *uint32, value uint32, limit time.Duration) {
	ts := unix.NsecToTimespec(int64(limit))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWait, uintptr(value), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// futexWake wakes all threads that sleep on the word.
func futexWake(word *uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWake, math.MaxInt32, 0, 0, 0)
}
