package bridge

import (
	"sync"

	"github.com/poolbridge/poolbridge/mempool/service"
)

// notices are what a session is still to be told, in order.
type notices struct {
	wake chan struct{} // has room for one
	mu   sync.Mutex
	list []service.Notice
	told int // of list
}

// add adds a notice, unless limit of them wait.
func (q *notices) add(n service.Notice, limit int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list)-q.told >= limit {
		return false
	}
	if q.told > len(q.list)/2 { // what was told must not pile up
		rest := copy(q.list, q.list[q.told:])
		clear(q.list[rest:])
		q.list, q.told = q.list[:rest], 0
	}
	q.list = append(q.list, n)
	select {
	case q.wake <- struct{}{}:
	default: // it is awake
	}
	return true
}

// next takes the notice that has waited the longest; nil if there is none.
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
