package shmchannel

import "math/bits"

// holds is a consumer's private copy of the holds in its cursor.
type holds struct {
	busy    [MaxInHand / 64]uint64
	numbers [MaxInHand]uint64
	used    uint64
}

// free returns the index of the first free hold, or -1 if no hold is free.
func (h *holds) free() int {
	for i, b := range h.busy {
		if b != ^uint64(0) {
			return 64*i + bits.TrailingZeros64(^b)
		}
	}
	return -1
}

// find returns the index of the hold of a frame, or -1 if the frame has no hold.
func (h *holds) find(number uint64) int {
	for i := range h.used {
		if h.numbers[i] == number {
			return int(i)
		}
	}
	return -1
}

// hold stores the number of a frame in hold i, so that the frame's block does not go back to its producer. After this call, the caller must
// check that the channel still keeps the frame and that the consumer still takes part in the channel.
func (c *Consumer) hold(i int, number uint64) {
	if used := uint64(i) + 1; used > c.holds.used {
		c.holds.used = used
		c.cursor.holdsUsed.Store(used)
	}
	c.holds.busy[i/64] |= 1 << (i % 64)
	c.holds.numbers[i] = number
	c.cursor.holds[i].number.Store(number)
}

// clearHold clears hold i and wakes all producers that sleep. clearHold always wakes them: even if the consumer held the block only for a moment,
// a producer may already sleep until the block comes back.
func (c *Consumer) clearHold(i int) {
	c.holds.busy[i/64] &^= 1 << (i % 64)
	c.holds.numbers[i] = 0
	h := &c.cursor.holds[i]
	h.number.Store(0)
	h.block.Store(0) // otherwise a reader could see the next frame's number with this frame's block
	c.sequencer.freed.wake()
}
