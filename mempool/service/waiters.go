package service

import "slices"

// waiters has the allocations that wait for room in a pool, in one queue for each block size. It wakes one of a queue at a time: if that
// one finds no room, the others would not either. It is guarded by Service.mu.
type waiters struct {
	mutex   *mutex
	changes uint64 // counts the broadcasts
	lines   map[uint64][]*place
}

// place is the place of one allocation in a queue.
type place struct {
	room  *waiters
	size  uint64
	wake  chan struct{} // closed to make the allocation try again; nil while it tries
	tried uint64        // waiters.changes when it last tried
}

// join adds a place at the end of a queue.
func (r *waiters) join(size uint64) *place {
	pl := &place{room: r, size: size}
	if r.lines == nil {
		r.lines = make(map[uint64][]*place)
	}
	r.lines[size] = append(r.lines[size], pl)
	return pl
}

// broadcast says that there may be room.
func (r *waiters) broadcast() {
	r.changes++
	for size := range r.lines {
		r.next(size)
	}
}

// next wakes the first allocation of a queue that has not tried since the last broadcast, unless one is trying at this moment.
func (r *waiters) next(size uint64) {
	for _, pl := range r.lines[size] {
		if pl.wake == nil { // it calls next when it has tried
			return
		}
		if pl.tried < r.changes {
			r.mutex.wake(pl.wake)
			pl.wake = nil
			return
		}
	}
}

// wait returns a channel that is closed when the allocation is to try again. seen is waiters.changes when it last tried. alone says
// that others of the queue may succeed where it failed.
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

// leave removes the place, and wakes the next allocation of the queue.
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
