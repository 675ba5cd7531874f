package server

import (
	"sync"

	"github.com/poolbridge/poolbridge/mempool/service"
)

// notices is the queue of notices for a session.
type notices struct {
	wake     chan struct{} // buffered for one value
	mu       sync.Mutex
	list     []service.Notice
	returned int // how many entries of `list` next has returned already
}

// add adds a notice. It returns false if `limit` notices wait already.
func (q *notices) add(n service.Notice, limit int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list)-q.returned >= limit {
		return false
	}
	if q.returned > len(q.list)/2 { // remove the entries that next has returned, so that the list does not grow
		rest := copy(q.list, q.list[q.returned:])
		clear(q.list[rest:])
		q.list, q.returned = q.list[:rest], 0
	}
	q.list = append(q.list, n)
	select {
	case q.wake <- struct{}{}:
	default: // wake has a value already, so the sender will wake up
	}
	return true
}

// next takes the oldest notice that waits. It returns nil if no notice waits.
func (q *notices) next() service.Notice {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.returned == len(q.list) {
		q.list, q.returned = q.list[:0], 0
		return nil
	}
	n := q.list[q.returned]
	q.list[q.returned] = nil
	q.returned++
	return n
}
