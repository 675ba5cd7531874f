package shmchannel

import (
	"errors"
	"fmt"
	"time"
)

// takeFromBroadcast takes the next frame of a broadcast and stores it in f. It returns false if there is no frame to take. The caller holds
// c.mu.
//
// Errors: those of Take; errAgain and errDoubt.
func (c *Consumer) takeFromBroadcast(t tail, f *Frame) (bool, error) {
	newest := t.number()
	if c.next > newest {
		if c.next > newest+1 {
			return false, corrupt("the newest frame is %d, after %d", newest, c.next-1)
		}
		return false, c.ended(c.next, newest)
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
			err = errAgain
		}
		if err != nil {
			c.clearHold(h)
			return false, err
		}
	case c.inHands == MaxInHand:
		return false, c.tooMany()
	case n-c.floor >= c.slots: // producers never publish so far ahead of an active consumer's floor
		if err := c.takesPart(); err != nil {
			return false, err
		}
		return false, corrupt("frame %d comes next, but frame %d is not released", n, c.floor)
	}
	err := c.read(n, t, f)
	if err != nil && h >= 0 && c.lost(n) {
		err = errAgain
	}
	if err != nil && !errors.Is(err, ErrFrame) {
		if h >= 0 {
			c.clearHold(h)
		}
		return false, err
	}
	missed := n - c.next
	c.next = n + 1
	c.cursor.next.Store(c.next)
	if missed > 0 {
		c.missed += missed
		c.cursor.missed.Store(c.missed)
	}
	c.untold += missed
	if h < 0 {
		c.putInHand(n, f.Block)
		// The host may have removed this consumer while the consumer took frame n. Then producers may already believe that this consumer does not
		// have frame n, so the consumer does not use frame n, and marks it as not in hand.
		if left := c.takesPart(); left != nil {
			c.dropFromHand(n)
			return false, left
		}
	} else {
		c.moveFloor(c.next)
	}
	if err != nil {
		if h < 0 {
			c.dropFromHand(n)
		} else {
			c.clearHold(h)
		}
		return false, err
	}
	if h >= 0 {
		c.cursor.holds[h].block.Store(f.Block)
	}
	f.Missed, f.hold, c.untold, f.Delivery = c.untold, h, 0, 1
	return true, nil
}

// lost reports whether frame n is older than the oldest frame that the consumer can still take.
func (c *Consumer) lost(n uint64) bool { return n < c.oldest(c.sequencer.loadTail().number()) }

// read reads frame n into f. n is not greater than the number in tail t.
//
// Errors: [FrameError], [UnknownMemberError], errDoubt.
func (c *Consumer) read(n uint64, t tail, f *Frame) error {
	seat, how := c.sequencer.producerOf(n, t)
	if how != published {
		return errDoubt
	}
	tr, peer, err := c.trackOf(n, seat)
	if err != nil {
		return err
	}
	if v := tr.load(n, &f.Record); v != sound {
		return &FrameError{n, seat, string(v)}
	}
	f.Number, f.Producer = n, peer
	f.Ready.Timeline = peer.Timeline
	return nil
}

// takeFromQueue takes the frame that has waited longest in a queue, and stores it in f. It returns false if no frame waits. The caller
// holds c.mu.
//
// Errors: those of Take; errAgain and errDoubt.
func (c *Consumer) takeFromQueue(t tail, f *Frame) (bool, error) {
	s := &c.sequencer
	b, err := s.survey(t, 1)
	if err != nil {
		return false, err
	}
	if c.checksHead(b) {
		b = s.surveyAll(t, 1)
	}
	n := b.first.number
	if n == 0 {
		return false, c.ended(b.open, t.number())
	}
	h := c.holds.free()
	if h < 0 {
		return false, c.tooMany()
	}
	seat, how := s.producerOf(n, t)
	if how != published {
		return false, errDoubt
	}
	tr, peer, err := c.trackOf(n, seat)
	if err != nil && !errors.Is(err, ErrFrame) {
		return false, err
	}
	c.hold(h, n)
	if err := c.takesPart(); err != nil {
		c.clearHold(h)
		return false, err
	}
	if !s.claim(n).CompareAndSwap(uint64(b.first.claim), uint64(newClaim(n, c.tag()))) {
		c.clearHold(h)
		return false, errAgain
	}
	count := delivery(s.delivery(n).Load()).of(n)
	switch {
	case err != nil:
	case c.delivers > 0 && count >= c.delivers:
		err = &UndeliverableError{n, count}
	default:
		if v := tr.load(n, &f.Record); v != sound {
			err = &FrameError{n, seat, string(v)}
		}
	}
	f.Number, f.Producer, f.hold, f.Missed, f.Delivery = n, peer, h, 0, min(count+1, MaxDelivery)
	f.Ready.Timeline = peer.Timeline
	if err != nil {
		c.clearHold(h)
		return false, errors.Join(err, c.settle(n, tagDone))
	}
	s.delivery(n).Store(uint64(newDelivery(n, f.Delivery)))
	if s.dropped.Load() != 0 {
		f.Missed = s.dropped.Swap(0)
	}
	c.cursor.holds[h].block.Store(f.Block)
	s.freed.wake() // the queue can now accept another frame
	return true, nil
}

// checksHead reports whether this call must read every slot, because the head may be wrong: any member can write it. Then frames below the
// head wait. If no other frame waits, the consumer finds them after maxSleep, and else with one of its next headFrames frames. A consumer that
// would find the end of the channel checks always.
func (c *Consumer) checksHead(b backlog) bool {
	if b.first.number != 0 {
		return c.counts.Frames%headFrames == headFrames-1
	}
	now := time.Now()
	if c.roster.state.Load() != channelClosed && !c.abandoned() && now.Sub(c.checked) < maxSleep {
		return false
	}
	c.checked = now
	return true
}

// headFrames is how many frames of a queue a consumer takes before it reads every slot.
const headFrames = 256

// tag returns the tag of this consumer's claims.
func (c *Consumer) tag() uint64 { return tagConsumer + uint64(c.seat) }

func (c *Consumer) tooMany() error {
	return fmt.Errorf("%w: %d frames are in hand, which is the limit; release some first", ErrInHand, MaxInHand)
}
