package shmchannel

import "math/bits"

// holds are a consumer's own notes on the holds of its cursor.
type holds struct {
	busy    [MaxInHand / 64]uint64
	numbers [MaxInHand]uint64
	used    uint64
}

// free is the first hold that is free, -1 if none is.
func (h *holds) free() int {
	for i, b := range h.busy {
		if b != ^uint64(0) {
			return 64*i + bits.TrailingZeros64(^b)
		}
	}
	return -1
}

// find is the hold of a number, -1 if it has none.
func (h *holds) find(number uint64) int {
	for i := range h.used {
		if h.numbers[i] == number {
			return int(i)
		}
	}
	return -1
}

// hold keeps the block of a frame from coming back. The caller looks only then whether the frame is still kept, and whether the
// consumer still takes part.
func (c *Consumer) hold(i int, number uint64) {
	if used := uint64(i) + 1; used > c.holds.used {
		c.holds.used = used
		c.cursor.holdsUsed.Store(used)
	}
	c.holds.busy[i/64] |= 1 << (i % 64)
	c.holds.numbers[i] = number
	c.cursor.holds[i].number.Store(number)
}

// unhold lets the block go. A producer may wait for it, even if it was held for a moment only.
func (c *Consumer) unhold(i int) {
	c.holds.busy[i/64] &^= 1 << (i % 64)
	c.holds.numbers[i] = 0
	h := &c.cursor.holds[i]
	h.number.Store(0)
	h.block.Store(0) // so that the next number is never seen beside this block
	c.sequencer.freed.wake()
}
