package shmchannel

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A goroutine that sleeps on a futex uses a thread. So only a few goroutines of a process call futex(2) themselves. All further goroutines
// sleep in Go, and the threads of the hub sleep for them: one thread for up to hubWords futexes.
const (
	// mostDirect is how many goroutines of the process call futex(2) themselves at a time. This is the fastest way to sleep.
	mostDirect = 32
	// hubWords is how many futexes one call of futex_waitv(2) waits for, without the hub's own word.
	hubWords = 127
	// sysFutexWaitv is the number of the system call on every architecture. It exists since Linux 5.16.
	sysFutexWaitv = 449
	// futex32 and futexPrivate are flags of futex_waitv.
	futex32      = 2
	futexPrivate = 128
)

var (
	direct  atomic.Int64
	sleeps  hub
	canWait = sync.OnceValue(func() bool { // whether the kernel has futex_waitv: it refuses a list of no futexes
		_, _, errno := unix.RawSyscall6(sysFutexWaitv, 0, 0, 0, 0, 0, 0)
		return errno == unix.EINVAL
	})
)

// waitv is the kernel's struct futex_waitv.
type waitv struct {
	value, address  uint64
	flags, reserved uint32
}

// sleeper is a goroutine that sleeps on a futex without a thread of its own.
type sleeper struct {
	futex *futex
	value uint32
	woken chan struct{} // closed when the goroutine has to look at the futex again
}

// hub has groups of sleepers. Each group has a goroutine, which runs as long as the group has sleepers.
type hub struct {
	mu     sync.Mutex
	groups []*group
}

// group is a list of sleepers, for which one thread sleeps.
type group struct {
	hub      *hub
	sleepers []*sleeper // guarded by hub.mu
	bell     futex      // rung when the list has changed
}

// sleep does what futex.sleep does.
func (h *hub) sleep(f *futex, v uint32, limit time.Duration) {
	s := &sleeper{f, v, make(chan struct{})}
	g := h.add(s)
	timer := time.NewTimer(limit)
	select {
	case <-s.woken:
	case <-timer.C:
	}
	timer.Stop()
	h.remove(g, s)
}

// add adds a sleeper to a group with room, or to a new group.
func (h *hub) add(s *sleeper) *group {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.groups {
		if len(g.sleepers) < hubWords {
			g.sleepers = append(g.sleepers, s)
			g.ring()
			return g
		}
	}
	g := &group{hub: h, sleepers: []*sleeper{s}}
	h.groups = append(h.groups, g)
	go g.run()
	return g
}

// remove removes a sleeper. After that, the hub does not use the sleeper's futex any more, so that its memory may be unmapped: a running call
// of futex_waitv needs the memory only when it begins, and fails then if the memory is gone.
func (h *hub) remove(g *group, s *sleeper) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g.sleepers = slices.DeleteFunc(g.sleepers, func(other *sleeper) bool { return other == s })
	if len(g.sleepers) == 0 {
		g.ring()
	}
}

// ring makes the group's thread look at the list again.
func (g *group) ring() {
	g.bell.word.Add(1)
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&g.bell.word)), futexOpWake|futexPrivate, 1, 0, 0, 0)
}

// run sleeps for the group's sleepers, and wakes those whose futexes have changed. It ends when the group has no sleepers.
func (g *group) run() {
	list := make([]waitv, 0, hubWords+1)
	for {
		g.hub.mu.Lock()
		bell := g.bell.word.Load()
		list = append(list[:0], waitv{value: uint64(bell), address: uint64(uintptr(unsafe.Pointer(&g.bell.word))), flags: futex32 | futexPrivate})
		g.sleepers = slices.DeleteFunc(g.sleepers, func(s *sleeper) bool {
			if s.futex.word.Load() != s.value {
				close(s.woken)
				return true
			}
			list = append(list, waitv{value: uint64(s.value), address: uint64(uintptr(unsafe.Pointer(&s.futex.word))), flags: futex32})
			return false
		})
		if len(g.sleepers) == 0 {
			g.hub.groups = slices.DeleteFunc(g.hub.groups, func(other *group) bool { return other == g })
			g.hub.mu.Unlock()
			return
		}
		g.hub.mu.Unlock()
		_, _, _ = unix.Syscall6(sysFutexWaitv, uintptr(unsafe.Pointer(&list[0])), uintptr(len(list)), 0, 0, 0, 0)
	}
}
