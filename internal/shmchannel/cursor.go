package shmchannel

import (
	"os"
	"sync/atomic"
)

// hold is an entry of a consumer's cursor. While the entry has the number of a frame, the producer of the frame does not get the frame's
// block back.
type hold struct{ number, block atomic.Uint64 }

// done is an entry of a cursor: the fence after which the consumer's work on a frame is done.
type done struct {
	number, value, word atomic.Uint64
	_                   uint64
}

// store writes the fence of the frame with this number.
func (d *done) store(number uint64, t Fence) {
	d.number.Store(0)
	put(&d.value, t.Value)
	put(&d.word, t.Word)
	d.number.Store(number)
}

// load returns the fence and the number of its frame. ok is false while the consumer writes the entry.
func (d *done) load() (number uint64, t Fence, ok bool) {
	number = d.number.Load()
	t.Value, t.Word = d.value.Load(), d.word.Load()
	if d.number.Load() != number || number == 0 && t.Value != 0 {
		return 0, Fence{}, false
	}
	return number, t, true
}

// counted is the part of a member's file that says, for people, how many frames the member has published or taken, and which was the last.
type counted struct{ frames, last atomic.Uint64 }

func (c *counted) store(frames, last uint64) {
	put(&c.frames, frames)
	put(&c.last, last)
}

// cursorHead is the part of a cursor whose size does not depend on N, the number of slots.
type cursorHead struct {
	floor     atomic.Uint64
	next      atomic.Uint64
	holdsUsed atomic.Uint64
	missed    atomic.Uint64
	counted   counted
	_         [4096 - 48]byte
	holds     [MaxInHand]hold
}

// cursor is a file of one consumer. It says which frames the consumer has taken and released. Before the consumer joins, the host writes
// the file too. After that, only the consumer writes it.
type cursor struct {
	*cursorHead
	region
	geometry
	id   uint64
	done []done
}

// mapCursor maps the cursor of the consumer with this id.
//
// Errors: [ErrFile]; errors of the system.
func mapCursor(f *os.File, l geometry, id uint64, write bool) (*cursor, error) {
	mem, err := mapFile(f, l.cursorBytes(), write)
	if err != nil {
		return nil, err
	}
	return newCursor(mem, l, id), nil
}

func newCursor(mem region, l geometry, id uint64) *cursor {
	return &cursor{
		cursorHead: at[cursorHead](mem, 0), region: mem, geometry: l, id: id,
		done: list[done](mem, HeadBytes, l.slots),
	}
}

func (c *cursor) doneAt(number uint64) *done { return &c.done[number&c.mask()] }

// used returns how many holds a reader must look at, beginning with the first hold.
func (c *cursor) used() uint64 { return min(c.holdsUsed.Load(), MaxInHand) }
