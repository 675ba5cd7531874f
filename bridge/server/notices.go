package server

import (
	"sync"

	"github.com/poolbridge/poolbridge/mempool/service"
)

// notices is the queue of notices for a session.
type notices struct {
	wake chan struct{} // buffered for one value
	mu   sync.Mutex
	list []service.Notice
	told int // how many entries of list the method next has returned
}

// add adds a notice. It returns false if limit notices wait already.
func (q *notices) add(n service.Notice, limit int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list)-q.told >= limit {
		return false
	}
	if q.told > len(q.list)/2 { // remove those that were returned, so that the list does not grow
		rest := copy(q.list, q.list[q.told:])
		clear(q.list[rest:])
		q.list, q.told = q.list[:rest], 0
	}
	q.list = append(q.list, n)
	select {
	case q.wake <- struct{}{}:
	default: // the sender has a wake-up pending
	}
	return true
}

// next takes the oldest notice. It returns nil if there is none.
func (q *notices) next() service.Notice {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.told == len(q.list) {
		q.list, q.told = q.list[:0], 0
		return nil
	}
	n := q.list[q.told]
	q.list[q.told] = nil
	q.told++
	return n
}
