package mempool

import (
	"context"
	"iter"
	"maps"
	"time"
)

// This file is how sessions of the service's own process use channels. Bridge clients have the same.

// Channel is a channel that a session of the service's own process has open.
type Channel struct {
	session *Session
	info    ChannelInfo
}

// Frame is a buffer that came through a channel.
type Frame struct {
	// Lease is a read lease on the buffer; nil where an error came with the frame.
	Lease *Lease
	// Seq is the frame's number in the channel, from 1.
	Seq uint64
	// Time is when it was sent.
	Time time.Time
	// Meta is what the sender said about it.
	Meta map[string]string
	// Dropped is how many frames were missed since the last.
	Dropped uint64

	sub *subscription
}

// forever is a time limit that is none.
const forever = 100 * 365 * 24 * time.Hour

// CreateChannel makes a channel whose frames go through the service, or opens the one that is just like it. A session in the service's
// own process can use no other. See [Session.MakeChannel], which makes others for clients.
//
// Errors: [ErrInvalid] for a spec without ThroughService, and those of [Session.MakeChannel].
func (s *Session) CreateChannel(spec ChannelSpec) (*Channel, error) {
	if !spec.ThroughService {
		return nil, situation(ErrInvalid, "channel %q: a session in the service's own process uses channels through the service alone; set ThroughService", spec.Name)
	}
	info, err := s.MakeChannel(spec)
	if err != nil {
		return nil, err
	}
	return &Channel{s, info}, nil
}

// OpenChannel opens a channel by name. See [Session.FindChannel].
func (s *Session) OpenChannel(ctx context.Context, name string, wait time.Duration) (*Channel, error) {
	info, err := s.FindChannel(ctx, name, wait)
	if err != nil {
		return nil, err
	}
	return &Channel{s, info}, nil
}

// Info describes the channel.
func (c *Channel) Info() ChannelInfo { return c.info }

// Publish puts the buffer of a write lease into the channel and ends the lease. It returns the frame's number. If it fails
// the lease lives on.
//
// Errors: [ErrTimeout], which names who is behind, or [ErrLimit] if the channel is full, [ErrInvalid], [ErrReleased],
// [ErrDenied], [ErrClosed], the context's.
func (c *Channel) Publish(ctx context.Context, l *Lease, o FrameOptions) (uint64, error) {
	if err := o.Validate(); err != nil {
		return 0, err
	}
	if l.session != c.session {
		return 0, situation(ErrInvalid, "lease %d is of another session than the channel", l.id)
	}
	o.Meta = maps.Clone(o.Meta)
	number, waits, err := l.send(c.info.ID, o)
	if waits != nil {
		limit := o.Wait
		if limit == 0 {
			limit = forever
		}
		number, err = waits.Wait(ctx, limit)
	}
	if err != nil {
		return 0, err
	}
	return number, l.finish()
}

// Shut closes the channel. See [Session.ShutChannel].
func (c *Channel) Shut() error { return c.session.ShutChannel(c.info.ID) }

// Frames subscribes to the channel and yields its frames. Each is to be released, which ends its lease. Asking for the next
// acknowledges the frame before it, released or not, unless o says ManualAck. A frame whose content will never be complete
// comes with [ErrProducerDied] and without a lease, and others follow it; any other error is the last. When the channel is
// shut, the frames end without one: those of a queue once every frame is acknowledged.
func (c *Channel) Frames(ctx context.Context, o SubscribeOptions) iter.Seq2[*Frame, error] {
	return func(yield func(*Frame, error) bool) {
		sub, err := c.subscribe(o)
		if err != nil {
			yield(nil, err)
			return
		}
		sub.each(ctx, o.ManualAck, yield)
	}
}

// each yields frames until there are no more, or nobody wants more.
func (sub *subscription) each(ctx context.Context, manual bool, yield func(*Frame, error) bool) {
	defer sub.abandon()
	for {
		n, err := sub.receive(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		switch n := n.(type) {
		case Ended:
			if n.Err != nil {
				yield(nil, n.Err)
			}
			return
		case Delivered:
			f := &Frame{Lease: n.Lease, Seq: n.Seq, Time: n.Time, Meta: maps.Clone(n.Meta), Dropped: n.Dropped, sub: sub}
			if n.Err != nil {
				f.more()
			}
			if !yield(f, n.Err) {
				return
			}
			if !manual {
				f.pass()
			}
		}
	}
}

func (c *Channel) subscribe(o SubscribeOptions) (*subscription, error) {
	o, err := o.Filled()
	if err != nil {
		return nil, err
	}
	svc := c.session.svc
	svc.mu.Lock()
	defer svc.unlock()
	sub, err := c.session.subscribe(c.info.ID, o)
	if err != nil {
		return nil, err
	}
	sub.begun, sub.credit = true, o.Credit
	sub.channel.hand()
	return sub, nil
}

// receive waits for the next notice.
func (sub *subscription) receive(ctx context.Context) (Notice, error) {
	s := sub.session
	for {
		s.svc.mu.Lock()
		if len(sub.inbox) > 0 {
			n := sub.inbox[0]
			sub.inbox = sub.inbox[1:]
			s.svc.mu.Unlock()
			return n, nil
		}
		err, arrived := s.alive(), sub.arrived.next()
		s.svc.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-arrived:
		case <-s.over:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// abandon ends the subscription and gives back what nobody took.
func (sub *subscription) abandon() {
	svc := sub.session.svc
	svc.mu.Lock()
	defer svc.unlock()
	sub.leave()
	for _, n := range sub.inbox {
		if d, ok := n.(Delivered); ok && d.Lease != nil && !d.Lease.ended {
			d.Lease.end(true, nil)
		}
	}
	sub.inbox = nil
}

// Release ends the frame's lease: the memory is not needed any more, at the latest once what is in the queues that are named
// is done. A frame that was not settled before is acknowledged.
//
// Errors: [ErrReleased] if it had been released before.
func (f *Frame) Release(after ...Queue) error {
	if f.Lease == nil {
		return nil
	}
	return f.Lease.release(false, after...)
}

// Ack acknowledges the frame: in a queue it goes to nobody else, in a broadcast it holds no sender back any more. The memory
// stays until the frame is released.
//
// Errors: [ErrSettled] if it was acknowledged, by Release or by asking for the next frame too, or given back before, [ErrClosed].
func (f *Frame) Ack() error { return f.settle(false) }

// Requeue gives a frame of a queue back to it, in its place: another subscriber gets it, or this one again. The memory stays
// until the frame is released.
//
// Errors: those of [Frame.Ack]; [ErrInvalid] in a broadcast.
func (f *Frame) Requeue() error { return f.settle(true) }

func (f *Frame) settle(again bool) error {
	if f.Lease == nil {
		return situation(ErrInvalid, "frame %d came without a lease: there is nothing to acknowledge", f.Seq)
	}
	svc := f.sub.session.svc
	svc.mu.Lock()
	defer svc.unlock()
	if err := f.sub.session.alive(); err != nil { // which gave the frame back, if it was not settled
		return err
	}
	return f.Lease.frame.decide(again)
}

// pass acknowledges the frame if it is not settled.
func (f *Frame) pass() {
	if f.Lease == nil {
		return
	}
	svc := f.sub.session.svc
	svc.mu.Lock()
	defer svc.unlock()
	f.Lease.frame.settleAhead(false)
}

// more lets another frame come in the place of this one, which came without a lease, if the subscription lives.
func (f *Frame) more() {
	svc := f.sub.session.svc
	svc.mu.Lock()
	defer svc.unlock()
	if f.sub.lives() {
		f.sub.credit++
		f.sub.channel.hand()
	}
}
