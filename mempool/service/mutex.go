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
func (m *mutex) wake(ch chan struct{}) { m.woken = append(m.woken, ch) }

// note adds an event to the event log, which the next Unlock logs. The parameter `pool` is the pool that the event concerns, or nil. The
// caller holds the lock.
func (m *mutex) note(e mempool.HistoryEvent, pool *ledger.Pool) {
	one := eventlog.Entry{HistoryEvent: e}
	if pool != nil {
		one.Pool, one.Maker, one.Access = pool.Info.Name, pool.Maker, pool.Access
	}
	m.eventLog.Note(one)
	m.noted = true
}

// Unlock unlocks the mutex, and then closes the channels that callers have passed to the method wake, and has the event log log the noted events.
func (m *mutex) Unlock() {
	if m.commit != nil {
		m.commit() // before anybody can see the changes
	}
	if m.check != nil {
		if fault := m.check(); fault != "" {
			m.check = nil // those who unlock the mutex while the panic unwinds shall not panic again
			m.Mutex.Unlock()
			panic(fault)
		}
	}
	woken, noted := m.woken, m.noted
	m.woken, m.noted = nil, false
	m.Mutex.Unlock()
	for _, ch := range woken {
		close(ch)
	}
	if noted {
		m.eventLog.Log()
	}
}
