package shmchannel

import "fmt"

// Release says that the consumer uses the frame no more, once the fence is reached; a fence without a value says that it does not
// now. Frames can be released in any order. The fence's Timeline is the consumer's own.
//
// The place for fences is bounded. Where a fence would be overwritten that is neither reached nor implied, because the new one
// is of another word or smaller, nothing is released: the caller waits for that fence first.
//
// Errors: [ErrReleased], [ErrInvalid], [ErrUnfinished], [ErrLeft] if the consumer is closed.
func (c *Consumer) Release(in InHand, done Fence) error {
	f := in.hand()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.gone("is closed")
	}
	h := c.holdOf(f)
	if h < 0 && !c.inHand(f.Number) {
		return c.notInHand(f.Number)
	}
	if done.Value != 0 {
		if err := c.storeFence(f.Number, done); err != nil {
			return err
		}
	}
	if h < 0 {
		c.let(f.Number)
		return nil
	}
	c.unhold(h)
	if !c.dropping() {
		c.inHands--
	}
	return nil
}

// Pass says that a frame of a broadcast needs its place in the channel no more. It stays in hand until it is released. Where frames can
// be dropped, a frame in hand needs no place, and Pass does nothing.
//
// Errors: [ErrInvalid] in a queue, [ErrReleased] for a frame that is not in hand, [ErrLeft] if the consumer is closed.
func (c *Consumer) Pass(in InHand) error {
	f := in.hand()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return c.gone("is closed")
	case c.mode == Queue:
		return invalid("frames of a queue are acknowledged")
	case c.holdOf(f) >= 0:
		return nil
	case !c.inHand(f.Number):
		return c.notInHand(f.Number)
	}
	f.hold = c.keep(f.Number)
	c.moveOn()
	return nil
}

// keep writes a frame in hand into a hold, so that the floor can move over it. There is one: frames in hand are no more than holds.
func (c *Consumer) keep(n uint64) (h int) {
	h = c.holds.free()
	c.hold(h, n)
	c.cursor.holds[h].block.Store(c.taken[n&c.mask()])
	c.taken[n&c.mask()] = 0
	return h
}

// holdOf is the hold of a frame, -1 if it has none.
func (c *Consumer) holdOf(f *Hand) int {
	switch {
	case f.Number == 0 || f.hold >= MaxInHand:
		return -1
	case f.hold >= 0 && c.holds.numbers[f.hold] == f.Number:
		return f.hold
	case f.hold < 0 && c.left:
		return c.holds.find(f.Number)
	}
	return -1
}

// storeFence stores when the consumer's work on a frame is done. A newer frame may have a fence in the same place.
func (c *Consumer) storeFence(number uint64, t Fence) error {
	if t.Value > MaxValue || t.Word > MaxWord {
		return invalid("a fence has a word up to %d and a value up to %d, not %d and %d", MaxWord, uint64(MaxValue), t.Word, t.Value)
	}
	place := c.cursor.doneAt(number)
	old, before, _ := place.load()
	if before.Value != 0 && (before.Word != t.Word || before.Value > t.Value) {
		if old >= number && before.Word == t.Word { // it implies the new one
			return nil
		}
		before.Timeline = t.Timeline
		if c.reached == nil || !c.reached(before) {
			return fmt.Errorf("%w: frame %d waits for value %d of word %d", ErrUnfinished, old, before.Value, before.Word)
		}
	}
	place.store(max(old, number), t)
	return nil
}

// take notes that a frame that cannot be dropped is in hand.
func (c *Consumer) take(n, block uint64) {
	c.taken[n&c.mask()] = block
	c.inHands++
}

func (c *Consumer) inHand(n uint64) bool {
	return n >= c.floor && n < c.next && c.taken[n&c.mask()] != 0
}

// let notes that it is not, and moves the floor over what is released.
func (c *Consumer) let(n uint64) {
	c.taken[n&c.mask()] = 0
	c.inHands--
	c.moveOn()
}

// moveOn moves the floor over what is not in hand, or in a hold.
func (c *Consumer) moveOn() {
	floor := c.floor
	for floor < c.next && c.taken[floor&c.mask()] == 0 {
		floor++
	}
	c.moveFloor(floor)
	c.sequencer.freed.wake()
}

func (c *Consumer) moveFloor(floor uint64) {
	if c.floor != floor {
		c.floor = floor
		c.cursor.floor.Store(floor)
	}
}

// Acknowledge says that a frame of a queue is done: no other consumer gets it. It does not release the frame.
//
// Errors: [ErrInvalid] in a broadcast, [ErrReleased] for a frame that is not the consumer's (any more), [ErrLeft] if it is closed.
func (c *Consumer) Acknowledge(f InHand) error { return c.decide(f.hand(), tagDone) }

// Requeue gives a frame of a queue back, and another consumer gets it. It does not release the frame.
//
// Errors: as Acknowledge.
func (c *Consumer) Requeue(f InHand) error { return c.decide(f.hand(), tagReturned) }

func (c *Consumer) decide(f *Hand, tag uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return c.gone("is closed")
	case c.mode != Queue:
		return invalid("frames of a broadcast are only released")
	}
	return c.settle(f.Number, tag)
}

// settle changes the consumer's claim.
func (c *Consumer) settle(number, tag uint64) error {
	s := &c.sequencer
	if !s.claim(number).CompareAndSwap(uint64(newClaim(number, c.tag())), uint64(newClaim(number, tag))) {
		return c.notInHand(number)
	}
	s.freed.wake()
	if tag == tagReturned || c.roster.state.Load() != channelOpen {
		s.published.wake() // it waits again, or it was the last
	}
	return nil
}

// Leave says that the consumer takes no frames any more. It can still release, acknowledge and requeue those that it has in hand.
// The caller then tells the host.
//
// Errors: [ErrLeft] if the consumer is closed.
func (c *Consumer) Leave() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.gone("is closed")
	}
	c.left = true
	for n := c.floor; n < c.next; n++ {
		if c.inHand(n) {
			c.keep(n)
		}
	}
	c.moveFloor(c.next)
	c.sequencer.freed.wake()
	return nil
}
