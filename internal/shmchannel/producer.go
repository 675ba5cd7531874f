package shmchannel

import (
	"context"
	"errors"
	"os"
	"time"
)

// Producer publishes frames. Several goroutines may call its methods. If two goroutines call Publish at the same time, either frame may
// come first.
type Producer struct {
	member
	track        *track
	descriptions descriptions
	cursors      [MaxConsumers]*cursor // the cursors of the consumers whose files have arrived
	view         view
	floor        uint64 // no consumer in view that can block this producer has a smaller floor
	last         uint64 // number of this producer's newest frame
	turn         turn
	lent
}

// OpenProducer maps the files of a channel for a producer, and returns the producer. The producer's own file (config.Own) must not be
// sealed against writing yet: the host seals the file (see [Host.Join]) after the caller has opened the producer.
//
// Errors: [ErrInvalid], [ErrFile]; errors of the system.
func OpenProducer(config MemberConfig) (*Producer, error) {
	if config.Seat < 0 || config.Seat >= MaxProducers || config.ID == 0 {
		return nil, invalid("a producer has a seat from 0 to %d and an id, not %d and %d", MaxProducers-1, config.Seat, config.ID)
	}
	c, err := openChannel(config.Roster, config.Sequencer)
	if err != nil {
		return nil, err
	}
	t, err := mapTrack(config.Own, c.geometry, config.ID, true)
	if err != nil {
		return nil, errors.Join(err, c.unmap())
	}
	p := &Producer{track: t, descriptions: descriptions{stored: make([]uint64, c.slots)}, turn: turn{patience: 2 * time.Millisecond}}
	p.init(c, config, &c.sequencer.freed)
	return p, nil
}

// AddCursor gives the producer the file of a consumer. The caller may close the file afterwards.
//
// Errors: [ErrInvalid], [ErrFile], [ErrLeft] if the producer is closed; errors of the system.
func (p *Producer) AddCursor(seat int, id uint64, f *os.File) error {
	if seat < 0 || seat >= MaxConsumers || id == 0 {
		return invalid("a consumer has a seat from 0 to %d and an id, not %d and %d", MaxConsumers-1, seat, id)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return p.gone("is closed")
	}
	old := p.cursors[seat]
	if old != nil && old.id >= id { // a later member of a seat has a greater id
		return nil
	}
	c, err := mapCursor(f, p.geometry, id, false)
	if err != nil {
		return err
	}
	p.cursors[seat] = c
	p.view.known = false
	if old != nil {
		return old.unmap()
	}
	return nil
}

// Publish publishes a frame and returns its number. If the channel has no room for the frame, Publish waits for room until the context
// ends. But Publish returns a [FullError] at once if a queue has the policy Fail. In a broadcast, Publish does so if a consumer with the
// policy Fail has not released enough frames.
//
// The memory of a published frame belongs to the channel, until [Producer.Reclaim] returns it. If Publish fails, the memory still belongs
// to the caller.
//
// Errors: [ErrInvalid], [FullError], [UnknownMemberError], [ErrClosed], [ErrDestroyed], [ErrLeft], [ErrCorrupt]; the context's error,
// joined with the FullError.
func (p *Producer) Publish(ctx context.Context, r *Record) (n uint64, err error) {
	if err := r.check(); err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var wait pause
	var ticket uint64
	defer func() {
		p.found(&wait, n != 0)
		p.endTurn(ticket)
	}()
	for {
		var f full
		n, f, err = p.attempt(r, ticket)
		if err != nil || n != 0 {
			return n, err
		}
		if f.fails {
			return 0, f.error()
		}
		ticket = p.takeTurn(ticket)
		if err := p.rest(ctx, &wait, f.limit()); err != nil {
			return 0, errors.Join(err, f.error())
		}
	}
}

// TryPublish is like [Producer.Publish], but returns a [FullError] where Publish would wait.
func (p *Producer) TryPublish(r *Record) (uint64, error) {
	if err := r.check(); err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n, f, err := p.attempt(r, 0)
	if err == nil && n == 0 {
		err = f.error()
	}
	return n, err
}

// maxRounds limits how often a call tries again because another member changed the tail. Honest members never reach this limit.
const maxRounds = 1 << 14

// attempt publishes r if there is room for the frame, and returns the frame's number. If there is no room, the number is 0. The caller
// holds p.mu.
func (p *Producer) attempt(r *Record, ticket uint64) (uint64, full, error) {
	s := &p.sequencer
	for range maxRounds {
		if p.closed {
			return 0, full{}, p.gone("is closed")
		}
		t := s.loadTail()
		if err := p.mayPublish(t); err != nil {
			return 0, full{}, err
		}
		n := t.number() + 1
		s.enter(t)
		f, err := p.room(t, n)
		if errors.Is(err, errAgain) {
			continue
		}
		if err == nil && !f.is {
			f = p.othersFirst(n, ticket)
		}
		if err != nil || f.is {
			return 0, f, err
		}
		p.write(n, r)
		if s.tail.CompareAndSwap(uint64(t), uint64(newTail(n, p.seat, t.version()))) {
			s.enter(newTail(n, p.seat, 0))
			p.last, p.turn.yields = n, 0
			p.counts.Frames++
			p.counts.Bytes += r.Bytes
			p.track.counted.store(p.counts.Frames, n)
			p.pending = append(p.pending, inFlight{n, r.Block, r.Owner})
			s.published.wake()
			if p.mode == Broadcast && len(p.view.others) > 0 {
				s.freed.wake() // another producer may wait for the block of the frame that the channel does not keep any more
			}
			return n, full{}, nil
		}
	}
	return 0, full{}, corrupt("the tail moved %d times while a frame was to be published", maxRounds)
}

// mayPublish returns an error if this producer may not publish the frame after tail t.
func (p *Producer) mayPublish(t tail) error {
	if err := p.refreshView(t); err != nil {
		return err
	}
	switch state := p.roster.state.Load(); {
	case state == channelDestroyed:
		return ErrDestroyed
	case state != channelOpen:
		return ErrClosed
	case !p.view.active:
		return p.gone("is not in the roster")
	case t.number() < p.last || t.number() >= MaxNumber:
		return corrupt("the newest frame is %d, after %d", t.number(), p.last)
	}
	return nil
}

// write writes the record of frame n. Consumers use the record only when the number in the tail is at least n.
func (p *Producer) write(n uint64, r *Record) {
	when := r.Time
	if when == 0 {
		when = uint64(time.Now().UnixNano())
	}
	raw := p.track.begin(n)
	i := n & p.mask()
	id := r.Description.id
	if r.Description.by != p {
		id = p.descriptions.id(r.Description)
	}
	if p.descriptions.stored[i] != id {
		p.track.descriptions[i].store(r.Description, &p.track.layouts[i])
		p.descriptions.stored[i] = id
	}
	p.track.store(raw, n, r, when, id)
}

// Destroyed reports whether the channel is destroyed or the producer is closed, so that the producer cannot publish any more.
func (p *Producer) Destroyed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed || p.roster.state.Load() == channelDestroyed
}

// Close unmaps the files of the channel. Calls of this producer that are waiting return [ErrLeft]. Close does not make the producer
// leave: the caller tells the service.
func (p *Producer) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.close() {
		return nil
	}
	err := errors.Join(p.track.unmap(), p.unmap())
	for _, c := range p.cursors {
		if c != nil {
			err = errors.Join(err, c.unmap())
		}
	}
	return err
}
