package shmchannel

import (
	"errors"
	"fmt"
)

// takeFromBroadcast takes the next frame of a broadcast. c.mu is held.
//
// Errors: those of Take; errMoved and errDoubt.
func (c *Consumer) takeFromBroadcast(t tail, f *Frame) (bool, error) {
	newest := t.number()
	if c.next > newest {
		if c.next > newest+1 {
			return false, corrupt("the newest frame is %d, after %d", newest, c.next-1)
		}
		return false, c.ended(c.next)
	}
	n := max(c.next, c.oldest(newest))
	if c.policy == Latest {
		n = newest
	}
	h := -1
	switch {
	case c.dropping():
		if h = c.holds.free(); h < 0 {
			return false, c.tooMany()
		}
		c.hold(h, n)
		err := c.takesPart()
		if err == nil && c.lost(n) {
			err = errMoved
		}
		if err != nil {
			c.unhold(h)
			return false, err
		}
	case c.inHands == MaxInHand:
		return false, c.tooMany()
	case n-c.floor >= c.slots: // the channel cannot go on so far while this consumer takes part
		if err := c.takesPart(); err != nil {
			return false, err
		}
		return false, corrupt("frame %d comes next, and frame %d is not released", n, c.floor)
	}
	err := c.read(n, t, f)
	if err != nil && h >= 0 && c.lost(n) {
		err = errMoved
	}
	if err != nil && !errors.Is(err, ErrFrame) {
		if h >= 0 {
			c.unhold(h)
		}
		return false, err
	}
	f.Missed, f.hold = n-c.next, h
	c.next = n + 1
	c.cursor.next.Store(c.next)
	if h < 0 {
		c.take(n, f.Block)
		// What a consumer had taken when the others saw that it takes no part any more stays its own. This frame may be too late.
		if left := c.takesPart(); left != nil {
			c.let(n)
			return false, left
		}
	} else {
		c.moveFloor(c.next)
	}
	if err != nil {
		if h < 0 {
			c.let(n)
		} else {
			c.unhold(h)
		}
		return false, err
	}
	if h >= 0 {
		c.cursor.holds[h].block.Store(f.Block)
	}
	return true, nil
}

// lost says whether a frame was dropped.
func (c *Consumer) lost(n uint64) bool { return n < c.oldest(c.sequencer.loadTail().number()) }

// read reads the frame of a number that is not above t's into f.
//
// Errors: [FrameError], [UnknownMemberError], errDoubt.
func (c *Consumer) read(n uint64, t tail, f *Frame) error {
	slot, how := c.sequencer.producerOf(n, t)
	if how != published {
		return errDoubt
	}
	tr, peer, err := c.trackOf(n, slot)
	if err != nil {
		return err
	}
	if v := tr.load(n, &f.Record); v != sound {
		return &FrameError{n, slot, string(v)}
	}
	f.Number, f.Producer = n, peer
	f.Ready.Timeline = peer.Timeline
	return nil
}

// takeFromQueue takes the frame of a queue that has waited longest. c.mu is held.
//
// Errors: those of Take; errMoved and errDoubt.
func (c *Consumer) takeFromQueue(t tail, f *Frame) (bool, error) {
	s := &c.sequencer
	b, err := s.survey(t, 1)
	if err != nil {
		return false, err
	}
	n := b.first.number
	if n == 0 {
		return false, c.ended(s.head.Load())
	}
	h := c.holds.free()
	if h < 0 {
		return false, c.tooMany()
	}
	slot, how := s.producerOf(n, t)
	if how != published {
		return false, errDoubt
	}
	tr, peer, err := c.trackOf(n, slot)
	if err != nil && !errors.Is(err, ErrFrame) {
		return false, err
	}
	c.hold(h, n)
	if err := c.takesPart(); err != nil {
		c.unhold(h)
		return false, err
	}
	if !s.claim(n).CompareAndSwap(uint64(b.first.claim), uint64(newClaim(n, c.tag()))) {
		c.unhold(h)
		return false, errMoved
	}
	if err == nil {
		if v := tr.load(n, &f.Record); v != sound {
			err = &FrameError{n, slot, string(v)}
		}
	}
	f.Number, f.Producer, f.hold, f.Missed = n, peer, h, 0
	f.Ready.Timeline = peer.Timeline
	if err != nil {
		c.unhold(h)
		return false, errors.Join(err, c.settle(n, tagDone))
	}
	if s.dropped.Load() != 0 {
		f.Missed = s.dropped.Swap(0)
	}
	c.cursor.holds[h].block.Store(f.Block)
	s.freed.wake() // there is room for another
	return true, nil
}

// tag marks claims as this consumer's.
func (c *Consumer) tag() uint64 { return tagConsumer + uint64(c.slot) }

func (c *Consumer) tooMany() error {
	return fmt.Errorf("%w: %d frames are in hand, from frame %d on; release some", ErrInHand, c.inHands, c.floor)
}
