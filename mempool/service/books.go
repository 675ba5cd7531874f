package service

import "sync"

// books is the lock of a service's books. A goroutine that a change wakes is woken after the lock was let go of: to wake it
// takes longer than most changes, and it wants the lock next.
type books struct {
	sync.Mutex
	woken []chan struct{}
}

// wake closes a channel once the lock is let go of. The lock is held.
func (b *books) wake(ch chan struct{}) { b.woken = append(b.woken, ch) }

// Unlock lets go of the lock.
func (b *books) Unlock() {
	woken := b.woken
	b.woken = nil
	b.Mutex.Unlock()
	for _, ch := range woken {
		close(ch)
	}
}
