package shmchannel

import (
	"os"
	"sync/atomic"
)

// hold keeps the block of a frame from coming back to its producer.
type hold struct{ number, block atomic.Uint64 }

// done says when a consumer's work on a frame is done.
type done struct {
	number, value, word atomic.Uint64
	_                   uint64
}

// store writes the fence of a number.
func (d *done) store(number uint64, t Fence) {
	d.number.Store(0)
	put(&d.value, t.Value)
	put(&d.word, t.Word)
	d.number.Store(number)
}

// load reads the fence, and the number that it is of. ok is false while it is being written.
func (d *done) load() (number uint64, t Fence, ok bool) {
	number = d.number.Load()
	t.Value, t.Word = d.value.Load(), d.word.Load()
	if d.number.Load() != number || number == 0 && t.Value != 0 {
		return 0, Fence{}, false
	}
	return number, t, true
}

// cursorHead is the part of a cursor that does not grow with N.
type cursorHead struct {
	floor     atomic.Uint64
	next      atomic.Uint64
	holdsUsed atomic.Uint64
	_         [4096 - 24]byte
	holds     [MaxInHand]hold
}

// cursor says how far a consumer is. Only that consumer writes it, and the host before it takes part.
type cursor struct {
	*cursorHead
	region
	layout
	id   uint64
	done []done
}

// mapCursor maps the cursor of a member.
//
// Errors: [ErrFile]; the system's.
func mapCursor(f *os.File, l layout, id uint64, write bool) (*cursor, error) {
	mem, err := mapFile(f, l.cursorBytes(), write)
	if err != nil {
		return nil, err
	}
	return newCursor(mem, l, id), nil
}

func newCursor(mem region, l layout, id uint64) *cursor {
	return &cursor{
		cursorHead: at[cursorHead](mem, 0), region: mem, layout: l, id: id,
		done: list[done](mem, headBytes, l.slots),
	}
}

func (c *cursor) doneAt(number uint64) *done { return &c.done[number&c.mask()] }

// used is how many of the holds may hold something.
func (c *cursor) used() uint64 { return min(c.holdsUsed.Load(), MaxInHand) }
