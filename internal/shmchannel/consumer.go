package shmchannel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// Hand identifies a frame that a consumer has in hand, that is, has taken and not released yet.
type Hand struct {
	Number uint64
	hold   int
}

func (h *Hand) hand() *Hand { return h }

// InHand is a *[Frame] or a *[Hand]. A caller that only wants to release a frame later can keep the Hand and forget the Frame.
type InHand interface{ hand() *Hand }

// Frame is a frame that a consumer has taken.
type Frame struct {
	Hand
	// In a broadcast, Missed is the number of frames that this consumer did not get between the last frame that it took and this frame. In
	// a queue, Missed is the number of frames that the channel has dropped since a consumer of the queue (this one or another) last took a
	// frame.
	Missed uint64
	// Delivery is how often consumers have got this frame, with this time. In a broadcast it is 1.
	Delivery uint64
	Producer Peer
	// Record is what the producer published. The caller must not change the slices or the description in the Record. If the caller passes
	// the same Frame to Take again, Take overwrites the slices.
	Record
}

// Consumer takes frames. Several goroutines may call its methods at the same time.
type Consumer struct {
	member
	cursor *cursor
	policy Policy
	tracks [MaxProducers]*track // the tracks whose files have arrived

	started bool
	next    uint64
	floor   uint64
	missed  uint64 // frames that the consumer has missed so far
	untold  uint64 // frames that it has missed since the last frame that it took
	left    bool
	taken   []uint64 // for a broadcast with Block or Fail: the block of each frame in hand, by slot
	inHands int      // number of frames in `taken`, plus the number of passed frames in `holds`
	holds   holds
	reached func(Fence) bool

	needsProducers bool

	producers []ProducerState // see Producers
	lastLeft  time.Time

	checked time.Time // when the consumer last read every slot of a queue because no frame seemed to wait
	doubt   time.Time // when the consumer first saw the present contradiction in the shared memory; zero: it sees no contradiction
}

// ConsumerConfig has what [OpenConsumer] needs to know.
type ConsumerConfig struct {
	MemberConfig
	// Reached reports whether a fence of the consumer's own timeline is reached. Release calls Reached before it overwrites the stored fence
	// of another frame, unless the new fence can be reached only after the stored fence. If Reached is nil, no fence counts as reached.
	Reached func(Fence) bool
	// NeedsProducers lets Take return [ErrAbandoned] when no producer is left and no frame will come from those that were there.
	NeedsProducers bool
}

// OpenConsumer maps the files of a channel for a consumer, and returns the consumer. When the process calls OpenConsumer, the consumer's
// own file (config.Own) must not be sealed against writing yet. The host seals the file after the caller has told the host that
// OpenConsumer has returned. The consumer can take frames after the host has told the caller that the consumer has joined.
//
// Errors: [ErrInvalid], [ErrFile]; errors of the system.
func OpenConsumer(config ConsumerConfig) (*Consumer, error) {
	if config.Seat < 0 || config.Seat >= MaxConsumers || config.ID == 0 {
		return nil, invalid("a consumer has a seat from 0 to %d and an id, not %d and %d", MaxConsumers-1, config.Seat, config.ID)
	}
	ch, err := openChannel(config.Roster, config.Sequencer)
	if err != nil {
		return nil, err
	}
	cur, err := mapCursor(config.Own, ch.geometry, config.ID, true)
	if err != nil {
		return nil, errors.Join(err, ch.unmap())
	}
	c := &Consumer{cursor: cur, taken: make([]uint64, ch.slots), reached: config.Reached, needsProducers: config.NeedsProducers}
	c.init(ch, config.MemberConfig, &ch.sequencer.published)
	return c, nil
}

// AddTrack gives the consumer the file f of a producer. After the call, the caller may close the file.
//
// Errors: [ErrInvalid], [ErrFile], [ErrLeft] if the consumer is closed; errors of the system.
func (c *Consumer) AddTrack(seat int, id uint64, f *os.File) error {
	if seat < 0 || seat >= MaxProducers || id == 0 {
		return invalid("a producer has a seat from 0 to %d and an id, not %d and %d", MaxProducers-1, seat, id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.gone("is closed")
	}
	old := c.tracks[seat]
	if old != nil && old.id >= id { // a later member of a seat has a greater id
		return nil
	}
	t, err := mapTrack(f, c.geometry, id, false)
	if err != nil {
		t = &track{id: id} // the frames of this producer fail, and no other frames
	}
	c.tracks[seat] = t
	if old != nil {
		err = errors.Join(err, old.unmap())
	}
	return err
}

// Take waits for the next frame and stores the frame in f. If the context ends, Take stops waiting and returns an error.
//
// Errors: [FrameError] or [UndeliverableError] if this one frame is lost (the next call of Take can take the next frame);
// [UnknownMemberError], [ErrInHand], [ErrEnded], [ErrAbandoned], [ErrDestroyed],
// [ErrLeft], [ErrCorrupt]; the context's error.
func (c *Consumer) Take(ctx context.Context, f *Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for wait := (pause{}); ; {
		ok, err := c.attempt(f)
		if ok || err != nil {
			c.found(&wait, ok)
			return err
		}
		if err := c.rest(ctx, &wait, c.patience()); err != nil {
			c.found(&wait, false)
			return err
		}
	}
}

// TryTake is like [Consumer.Take], but does not wait. If there is no frame, ok is false.
func (c *Consumer) TryTake(f *Frame) (ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attempt(f)
}

// If numbers in the shared memory contradict each other, the consumer reads them again at intervals of doubtLook. If they still
// contradict each other after doubtLimit, the consumer returns an error.
const (
	doubtLimit = 100 * time.Millisecond
	doubtLook  = 5 * time.Millisecond
)

var errDoubt = errors.New("shmchannel: the shared memory contradicts itself")

func (c *Consumer) patience() time.Duration {
	if c.doubt.IsZero() {
		return maxSleep
	}
	return doubtLook
}

// attempt takes a frame if there is a frame to take. Otherwise ok is false. The caller holds c.mu.
func (c *Consumer) attempt(f *Frame) (ok bool, err error) {
	if c.closed {
		return false, c.gone("is closed")
	}
	if err := c.takesPart(); err != nil {
		return false, err
	}
	for range maxRounds {
		t := c.sequencer.loadTail()
		if c.mode == Queue {
			ok, err = c.takeFromQueue(t, f)
		} else {
			ok, err = c.takeFromBroadcast(t, f)
		}
		switch {
		case err == nil:
		case errors.Is(err, errAgain):
			continue
		case errors.Is(err, errDoubt):
			if c.doubt.IsZero() {
				c.doubt = time.Now()
			} else if time.Since(c.doubt) > doubtLimit {
				return false, corrupt("%v for %v: the tail is %#x, and frame %d comes next", err, doubtLimit, uint64(t), c.next)
			}
			return false, nil
		}
		c.doubt = time.Time{}
		if ok {
			c.counts.Frames++
			c.counts.Bytes += f.Bytes
			c.counts.Missed += f.Missed
			c.cursor.counted.store(c.counts.Frames, f.Number)
		}
		return ok, err
	}
	return false, corrupt("the tail moved %d times while a frame was to be taken", maxRounds)
}

// takesPart returns nil if the consumer may take frames. The first successful call also reads the consumer's policy from
// the roster and, in a broadcast, the number of the first frame that the consumer takes.
//
// Errors: [ErrLeft], [ErrDestroyed].
func (c *Consumer) takesPart() error {
	own := &c.roster.consumers[c.seat]
	switch {
	case c.left:
		return c.gone("has left")
	case !own.active(c.id):
		return c.gone("is not in the roster")
	case c.roster.state.Load() == channelDestroyed:
		return ErrDestroyed
	case c.started:
		return nil
	}
	c.started = true
	c.policy = Policy(own.policy.Load())
	if c.mode == Broadcast {
		c.next = max(own.start.Load(), 1)
		c.floor = c.next
	}
	return nil
}

// dropping reports whether the channel can drop a frame while the consumer has it in hand. If so, the consumer needs a [hold] for the
// frame, so that the frame's block stays unchanged.
func (c *Consumer) dropping() bool { return c.mode == Queue || !c.policy.blocks() }

// ended returns the error for a consumer that found no frame, or nil if frames may still come. next is the number of the frame that the
// consumer waits for, and newest that of the newest frame.
func (c *Consumer) ended(next, newest uint64) error {
	if c.roster.state.Load() == channelClosed && next > c.roster.end.Load() {
		return ErrEnded
	}
	if next > newest && c.abandoned() && c.sequencer.loadTail().number() == newest {
		return ErrAbandoned
	}
	return nil
}

// abandoned reports whether the consumer needs producers, and none is left.
func (c *Consumer) abandoned() bool { return c.needsProducers && c.roster.abandoned.Load() != 0 }

// Producers returns the producers: those that take part, and those that left and whose seat no other producer has got. If none takes part,
// it also returns when the last one left; the time is zero if none has joined yet. After Close, both are as they were then.
func (c *Consumer) Producers() (found []ProducerState, abandoned time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookAtProducers()
	return slices.Clone(c.producers), c.lastLeft
}

func (c *Consumer) lookAtProducers() {
	if c.closed {
		return
	}
	c.producers, c.lastLeft = nil, time.Time{}
	if at := c.roster.abandoned.Load(); at != 0 {
		c.lastLeft = time.Unix(0, int64(at))
	}
	for i := range MaxProducers {
		s := &c.roster.producers[i]
		if how := Ending(s.ending.Load()); s.state.Load() == seatActive || how != 0 {
			c.producers = append(c.producers, ProducerState{s.pid.Load(), how})
		}
	}
}

// trackOf returns the track of the producer in a seat, and the producer.
func (c *Consumer) trackOf(number uint64, seat int) (*track, Peer, error) {
	s := &c.roster.producers[seat]
	peer := s.peer(seat)
	if s.state.Load() == seatFree || peer.ID == 0 {
		return nil, peer, &FrameError{number, seat, "the seat of its producer is free"}
	}
	t := c.tracks[seat]
	if t == nil || t.id != peer.ID {
		return nil, peer, &UnknownMemberError{ProducerRole, seat, peer.ID}
	}
	if t.region == nil {
		return nil, peer, &FrameError{number, seat, "the file of its producer could not be mapped"}
	}
	return t, peer, nil
}

// Close unmaps the files of the channel. Calls of Take that are waiting return [ErrLeft]. Close does not make the consumer
// leave: the caller calls [Consumer.Leave] first, and tells the service.
func (c *Consumer) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookAtProducers()
	if !c.close() {
		return nil
	}
	err := errors.Join(c.cursor.unmap(), c.unmap())
	for _, t := range c.tracks {
		if t != nil {
			err = errors.Join(err, t.unmap())
		}
	}
	return err
}

func (c *Consumer) notInHand(number uint64) error {
	return fmt.Errorf("%w: frame %d of consumer %d", ErrReleased, number, c.id)
}
