package service

import (
	"sync"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/eventlog"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// mutex is the lock of a service. The method wake only notes which goroutines are to wake up. Unlock wakes these goroutines after it has
// unlocked the mutex: to wake a goroutine takes longer than most changes of the service's state, and a woken goroutine needs the lock
// immediately. Unlock also writes events to the log after it has unlocked the mutex, because the log may block.
type mutex struct {
	sync.Mutex
	woken    []chan struct{}
	noted    bool // the event log has events for the log
	eventLog *eventlog.Events
	commit   func()                // writes the changes of the ledger to the books; nil: there are none
	check    func() (fault string) // looks for faults in the state; nil: nothing looks for them
}

// wake makes the next Unlock close ch. The caller holds the lock.
func (b *mutex) wake(ch chan struct{}) { b.woken = append(b.woken, ch) }

// note adds an event to the event log, which the next Unlock logs. The parameter `pool` is the pool that the event concerns, or nil. The
// caller holds the lock.
func (b *mutex) note(e mempool.HistoryEvent, pool *ledger.Pool) {
	one := eventlog.Entry{HistoryEvent: e}
	if pool != nil {
		one.Pool, one.Maker, one.Access = pool.Info.Name, pool.Maker, pool.Access
	}
	b.eventLog.Note(one)
	b.noted = true
}

// Unlock unlocks the mutex, and then closes the channels that callers have passed to the method wake, and has the event log log the noted events.
func (b *mutex) Unlock() {
	if b.commit != nil {
		b.commit() // before anybody can see the changes
	}
	if b.check != nil {
		if fault := b.check(); fault != "" {
			b.check = nil // those who unlock the mutex while the panic unwinds shall not panic again
			b.Mutex.Unlock()
			panic(fault)
		}
	}
	woken, noted := b.woken, b.noted
	b.woken, b.noted = nil, false
	b.Mutex.Unlock()
	for _, ch := range woken {
		close(ch)
	}
	if noted {
		b.eventLog.Log()
	}
}

// freeAndUnlock frees the memory that waits for it, and unlocks s.mu, which writes the changes to the books.
func (s *Service) freeAndUnlock() {
	s.reclaim.flushLogged()
	s.mu.Unlock()
}
