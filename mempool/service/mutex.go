package service

import "sync"

// mutex is the lock of a service. The method wake only notes which goroutines are to wake up. Unlock wakes these goroutines after it has
// unlocked the mutex: to wake a goroutine takes longer than most changes of the service's state, and a woken goroutine needs the lock
// immediately.
type mutex struct {
	sync.Mutex
	woken []chan struct{}
}

// wake makes the next Unlock close ch. The caller holds the lock.
func (b *mutex) wake(ch chan struct{}) { b.woken = append(b.woken, ch) }

// Unlock unlocks the mutex, and then closes the channels that callers have passed to the method wake.
func (b *mutex) Unlock() {
	woken := b.woken
	b.woken = nil
	b.Mutex.Unlock()
	for _, ch := range woken {
		close(ch)
	}
}
