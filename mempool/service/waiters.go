package service

import "slices"

// waiters are the allocations that wait for room in a pool, in one queue for each block size. One of a queue is woken at a time: where it
// finds no room, the others would not either. Service.mu guards them.
type waiters struct {
	mutex   *mutex
	changes uint64 // how often there may have come to be room
	lines   map[uint64][]*place
}

// place is somebody's place in a line.
type place struct {
	room  *waiters
	size  uint64
	wake  chan struct{} // closed when it is to look; nil while it does
	tried uint64        // the changes that it has seen
}

// join takes the last place in a line.
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

// next wakes the first in a line who has not looked since there may have come to be room, unless somebody is looking.
func (r *waiters) next(size uint64) {
	for _, pl := range r.lines[size] {
		if pl.wake == nil { // it will see to the others
			return
		}
		if pl.tried < r.changes {
			r.mutex.wake(pl.wake)
			pl.wake = nil
			return
		}
	}
}

// wait is closed when it is time to look again. seen are the changes there had been when the waiter looked last; alone says
// that others in the line might have found what it did not.
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

// leave gives the place up, to somebody who may find more.
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
