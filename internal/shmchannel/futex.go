package shmchannel

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// These operations of futex(2) also work for a word in memory that several processes share.
const (
	futexOpWait = 0
	futexOpWake = 1
)

// futexTries limits how often a call tries again because another member changed the word. A member that changes the word again and again
// can make others sleep or wake too often, but each sleep ends after maxSleep.
const futexTries = 1000

// futex is a word on which members sleep. Bit 0 says that a member sleeps. The other bits are a counter.
type futex struct{ word atomic.Uint32 }

// arm sets bit 0 of the word. Bit 0 says that a member is about to sleep. arm returns the new value of the word. The caller then checks
// once more whether it must sleep, and passes the returned value to the method sleep. If another member calls wake after arm, the word
// changes, and sleep returns at once.
func (f *futex) arm() uint32 {
	v := f.word.Load()
	for range futexTries {
		if v&1 != 0 || f.word.CompareAndSwap(v, v|1) {
			break
		}
		v = f.word.Load()
	}
	return v | 1
}

// sleep sleeps while the word is v, until another member wakes the caller or the limit is over.
func (f *futex) sleep(v uint32, limit time.Duration) {
	defer direct.Add(-1)
	if direct.Add(1) > mostDirect && canWait() {
		sleeps.sleep(f, v, limit)
		return
	}
	ts := unix.NsecToTimespec(int64(limit))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&f.word)), futexOpWait, uintptr(v), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// wake wakes all members that sleep on the word. A member that calls arm after wake sees everything that the caller of wake did before.
func (f *futex) wake() {
	for range futexTries {
		v := f.word.Load()
		if v&1 == 0 {
			return
		}
		if f.word.CompareAndSwap(v, v+1) {
			f.wakeAll()
			return
		}
	}
}

// advance changes the word and wakes all members that sleep on it. If a member is about to sleep and passes the old value to the method
// sleep, sleep returns at once.
func (f *futex) advance() {
	for range futexTries {
		v := f.word.Load()
		if f.word.CompareAndSwap(v, (v|1)+1) {
			break
		}
	}
	f.wakeAll()
}

func (f *futex) wakeAll() {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&f.word)), futexOpWake, math.MaxInt32, 0, 0, 0)
}
