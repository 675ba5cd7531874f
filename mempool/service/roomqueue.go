package service

import (
	"iter"

	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// roomQueue has the allocations that wait for room in a pool, in one queue for each block size. It wakes one allocation of a queue at a time:
// if that allocation finds no room, the other allocations of the queue would not find room. Service.mu guards it.
type roomQueue struct {
	mutex   *mutex
	changes uint64 // counts the broadcasts
	lines   map[uint64]*line
	looks   uint64 // counts the places that next has looked at
}

// line is a queue. No place before `turn` may be woken before the next broadcast: the allocation has tried since the last one.
type line struct {
	first, last *place
	turn        *place // nil: all have tried
}

// place is the place of one allocation in a queue.
type place struct {
	queue        *roomQueue
	session      *ledger.Session
	size         uint64
	before, next *place
	wake         chan struct{} // closed to make the allocation try again; nil while the allocation tries
	tried        uint64        // the value of roomQueue.changes when the allocation last tried
}

// join adds a place at the end of the queue for blocks of size bytes.
func (r *roomQueue) join(s *ledger.Session, size uint64) *place {
	if r.lines == nil {
		r.lines = make(map[uint64]*line)
	}
	l := r.lines[size]
	if l == nil {
		l = new(line)
		r.lines[size] = l
	}
	pl := &place{queue: r, session: s, size: size, before: l.last}
	if l.last == nil {
		l.first = pl
	} else {
		l.last.next = pl
	}
	l.last = pl
	if l.turn == nil {
		l.turn = pl
	}
	return pl
}

// broadcast says that the pool may have room now.
func (r *roomQueue) broadcast() {
	r.changes++
	for _, l := range r.lines {
		l.turn = l.first
		r.next(l)
	}
}

// next wakes the first allocation of a queue that has not tried since the last broadcast, unless another allocation of the queue is
// trying at this moment.
func (r *roomQueue) next(l *line) {
	for ; l.turn != nil; l.turn = l.turn.next {
		r.looks++
		pl := l.turn
		if pl.wake == nil { // this allocation tries now, and then calls next if other allocations may succeed
			return
		}
		if pl.tried < r.changes {
			r.mutex.wake(pl.wake)
			pl.wake = nil
			return
		}
	}
}

// due yields the places of allocations of at most `most` bytes that were woken, or will be woken next, and have not tried since the last
// broadcast.
func (r *roomQueue) due(most uint64) iter.Seq[*place] {
	return func(yield func(*place) bool) {
		for size, l := range r.lines {
			if size > most || l.turn == nil || l.turn.wake != nil { // nobody in this queue tries
				continue
			}
			for pl := l.turn; pl != nil; pl = pl.next {
				if pl.tried < r.changes && !yield(pl) {
					return
				}
			}
		}
	}
}

// woken returns a channel that is closed when the allocation is to try again. The argument `seen` is the value of roomQueue.changes when the
// allocation last tried. If the argument `alone` is true, other allocations of the queue may succeed although this allocation failed.
func (pl *place) woken(seen uint64, alone bool) <-chan struct{} {
	r := pl.queue
	if r.changes > seen {
		return past
	}
	wake := make(chan struct{})
	pl.wake, pl.tried = wake, seen
	if alone {
		r.next(r.lines[pl.size])
	}
	return wake
}

// leave removes the place from its queue, and wakes the next allocation of that queue.
func (pl *place) leave() {
	r := pl.queue
	l := r.lines[pl.size]
	if l.turn == pl {
		l.turn = pl.next
	}
	if pl.before == nil {
		l.first = pl.next
	} else {
		pl.before.next = pl.next
	}
	if pl.next == nil {
		l.last = pl.before
	} else {
		pl.next.before = pl.before
	}
	if l.first == nil {
		delete(r.lines, pl.size)
		return
	}
	r.next(l)
}
