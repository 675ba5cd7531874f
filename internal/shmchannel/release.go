package shmchannel

import "fmt"

// Release releases a frame. The consumer's work on the frame is done when the fence `done` is reached. If the Value of this fence is 0, the
// work is done now. The consumer can release its frames in any order. The fence must belong to the consumer's own timeline; the channel
// does not store the fence's Timeline.
//
// Frames whose numbers differ by a multiple of the number of slots have the same slot, and the consumer stores only one fence for each
// slot. So the slot may already have the fence of another frame. The new fence replaces this stored fence if the stored fence is reached,
// or if both fences have the same word and the stored value is not greater than the new value. If the stored fence belongs to a frame with
// a greater number, and has the same word as the new fence and a greater value, Release keeps the stored fence: when it is reached, the new
// fence is reached too. In all other cases, Release releases nothing and returns [ErrUnfinished]: the caller must wait for the stored fence
// and then call Release again.
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
		c.dropFromHand(f.Number)
		return nil
	}
	c.clearHold(h)
	if !c.dropping() {
		c.inHands--
	}
	return nil
}

// Pass frees the place that a frame in hand takes up in a broadcast, so that producers do not wait for this frame any more. The frame stays
// in hand until the consumer releases it. If the consumer's policy is DropOldest or Latest, a frame in hand takes up no place, and Pass
// does nothing.
//
// Errors: [ErrInvalid] if the channel is a queue, [ErrReleased] if the frame is not in hand, [ErrLeft] if the consumer is closed.
func (c *Consumer) Pass(in InHand) error {
	f := in.hand()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return c.gone("is closed")
	case c.mode == Queue:
		return invalid("a frame of a queue cannot be passed: acknowledge it")
	case c.holdOf(f) >= 0:
		return nil
	case !c.inHand(f.Number):
		return c.notInHand(f.Number)
	}
	f.hold = c.moveToHold(f.Number)
	c.moveOn()
	return nil
}

// moveToHold stores frame n, which is in hand, in a hold of the consumer's cursor. Then the consumer's floor can move past the frame. At least
// one hold is free: there are [MaxInHand] holds, the consumer has at most MaxInHand frames in hand, and frame n is one of them and has no
// hold yet.
func (c *Consumer) moveToHold(n uint64) (h int) {
	h = c.holds.free()
	c.hold(h, n)
	c.cursor.holds[h].block.Store(c.taken[n&c.mask()])
	c.taken[n&c.mask()] = 0
	return h
}

// holdOf returns the index of a frame's hold, or -1 if the frame has no hold.
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

// storeFence stores fence t for the frame with this number. When t is reached, the consumer's work on the frame is done. [Consumer.Release]
// says what storeFence does if the frame's slot already has the fence of another frame.
func (c *Consumer) storeFence(number uint64, t Fence) error {
	if t.Value > MaxFenceValue || t.Word > MaxWord {
		return invalid("a fence has a word up to %d and a value up to %d, not %d and %d", MaxWord, uint64(MaxFenceValue), t.Word, t.Value)
	}
	place := c.cursor.doneAt(number)
	old, before, _ := place.load()
	if before.Value != 0 && (before.Word != t.Word || before.Value > t.Value) {
		if old >= number && before.Word == t.Word { // the stored fence implies the new fence
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

// putInHand marks a frame that the channel cannot drop as in hand.
func (c *Consumer) putInHand(n, block uint64) {
	c.taken[n&c.mask()] = block
	c.inHands++
}

func (c *Consumer) inHand(n uint64) bool {
	return n >= c.floor && n < c.next && c.taken[n&c.mask()] != 0
}

// dropFromHand marks a frame as not in hand any more, and moves the floor.
func (c *Consumer) dropFromHand(n uint64) {
	c.taken[n&c.mask()] = 0
	c.inHands--
	c.moveOn()
}

// moveOn moves the floor to the first frame that is still in `taken`.
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

// Acknowledge tells the queue that the consumer has processed a frame, so that no other consumer gets the frame. Acknowledge does not
// release the frame.
//
// Errors: [ErrInvalid] in a broadcast, [ErrReleased] if the consumer does not have the frame, [ErrLeft] if the consumer is closed.
func (c *Consumer) Acknowledge(f InHand) error { return c.decide(f.hand(), tagDone) }

// Requeue puts a frame into its queue again, so that a consumer can take it again. Requeue does not release the frame.
//
// Errors: the same as those of Acknowledge.
func (c *Consumer) Requeue(f InHand) error { return c.decide(f.hand(), tagRequeued) }

func (c *Consumer) decide(f *Hand, tag uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return c.gone("is closed")
	case c.mode != Queue:
		return invalid("a frame of a broadcast can only be released")
	}
	return c.settle(f.Number, tag)
}

// settle replaces the consumer's own tag in the claim on a frame by the given tag.
func (c *Consumer) settle(number, tag uint64) error {
	s := &c.sequencer
	if !s.claim(number).CompareAndSwap(uint64(newClaim(number, c.tag())), uint64(newClaim(number, tag))) {
		return c.notInHand(number)
	}
	s.freed.wake()
	if tag == tagRequeued || c.roster.state.Load() != channelOpen || c.roster.abandoned.Load() != 0 {
		s.published.wake() // the frame waits again, or it was perhaps the last frame
	}
	return nil
}

// Leave stops the consumer from taking frames. The consumer can still release, acknowledge and requeue the frames that it has in hand.
// After Leave, the caller must tell the service that the consumer has left.
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
			c.moveToHold(n)
		}
	}
	c.moveFloor(c.next)
	c.sequencer.freed.wake()
	return nil
}
