package service

import "slices"

// waiters has the allocations that wait for room in a pool, in one queue for each block size. It wakes one allocation of a queue at a time:
// if that allocation finds no room, the other allocations of the queue would not find room. Service.mu guards waiters.
type waiters struct {
	mutex   *mutex
	changes uint64 // counts the broadcasts
	lines   map[uint64][]*place
}

// place is the place of one allocation in a queue.
type place struct {
	room  *waiters
	size  uint64
	wake  chan struct{} // closed to make the allocation try again; nil while the allocation tries
	tried uint64        // the value of waiters.changes when the allocation last tried
}

// join adds a place at the end of the queue for blocks of size bytes.
func (r *waiters) join(size uint64) *place {
	pl := &place{room: r, size: size}
	if r.lines == nil {
		r.lines = make(map[uint64][]*place)
	}
	r.lines[size] = append(r.lines[size], pl)
	return pl
}

// broadcast says that the pool may have room now.
func (r *waiters) broadcast() {
	r.changes++
	for size := range r.lines {
		r.next(size)
	}
}

// next wakes the first allocation of a queue that has not tried since the last broadcast, unless another allocation of the queue is
// trying at this moment.
func (r *waiters) next(size uint64) {
	for _, pl := range r.lines[size] {
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

// wait returns a channel that is closed when the allocation is to try again. The argument `seen` is the value of waiters.changes when the
// allocation last tried. If the argument `alone` is true, other allocations of the queue may succeed although this allocation failed.
func (pl *place) wait(seen uint64, alone bool) <-chan struct{} {
	r := pl.room
	if r.changes > seen {
		return past
	}
	wake := make(chan struct{})
	pl.wake, pl.tried = wake, seen
	if alone {
		r.next(pl.size)
	}
	return wake
}

// leave removes the place from its queue, and wakes the next allocation of that queue.
func (pl *place) leave() {
	r := pl.room
	line := r.lines[pl.size]
	i := slices.Index(line, pl)
	if line = slices.Delete(line, i, i+1); len(line) == 0 {
		delete(r.lines, pl.size)
		return
	}
	r.lines[pl.size] = line
	r.next(pl.size)
}
