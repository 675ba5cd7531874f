package service

import "sync"

// mutex is the lock of a service. It wakes waiting goroutines only after it is unlocked: waking them takes longer than most changes of
// the state, and the woken goroutines then need the lock.
type mutex struct {
	sync.Mutex
	woken []chan struct{}
}

// wake makes the next Unlock close ch. The caller holds the lock.
func (b *mutex) wake(ch chan struct{}) { b.woken = append(b.woken, ch) }

// Unlock unlocks the mutex, and then closes the channels that wake got.
func (b *mutex) Unlock() {
	woken := b.woken
	b.woken = nil
	b.Mutex.Unlock()
	for _, ch := range woken {
		close(ch)
	}
}
