package service

import "sync"

// mutex is a service's lock. It wakes waiting goroutines when it is unlocked: waking them takes longer than most changes, and
// they take the lock next.
type mutex struct {
	sync.Mutex
	woken []chan struct{}
}

// wake makes Unlock close a channel. The lock is held.
func (b *mutex) wake(ch chan struct{}) { b.woken = append(b.woken, ch) }

// Unlock unlocks the mutex and then closes the channels.
func (b *mutex) Unlock() {
	woken := b.woken
	b.woken = nil
	b.Mutex.Unlock()
	for _, ch := range woken {
		close(ch)
	}
}
