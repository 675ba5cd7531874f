package service

import "sync"

// mutex is a service's lock. A goroutine that a change wakes is woken after the lock was let go of: to wake it
// takes longer than most changes, and it wants the lock next.
type mutex struct {
	sync.Mutex
	woken []chan struct{}
}

// wake closes a channel once the lock is let go of. The lock is held.
func (b *mutex) wake(ch chan struct{}) { b.woken = append(b.woken, ch) }

// Unlock lets go of the lock.
func (b *mutex) Unlock() {
	woken := b.woken
	b.woken = nil
	b.Mutex.Unlock()
	for _, ch := range woken {
		close(ch)
	}
}
