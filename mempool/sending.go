package mempool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Sending is a frame on its way into a channel. Sends to a channel are carried out in the order in which they began.
type Sending struct {
	lease   *Lease
	channel *channel
	options FrameOptions
	ready   *Ticket
}

// Send puts the buffer of a write lease into a channel and ends the lease, if there is room: done is true then, or if err
// is what it fails with at once. Otherwise [Sending.Wait] must be called, which waits for its turn and for room.
//
// Errors: [ErrNotFound], [ErrInvalid], [ErrDenied], [ErrReleased], [ErrLimit] if the channel is full and its policy is to
// fail, [ErrClosed]. The lease lives on then.
func (s *Session) Send(channel, lease uint64, o FrameOptions) (number uint64, waits *Sending, err error) {
	if err := o.Validate(); err != nil {
		return 0, nil, err
	}
	l, err := s.FindLease(lease)
	if err != nil {
		return 0, nil, err
	}
	return l.send(channel, o)
}

func (l *Lease) send(channel uint64, o FrameOptions) (number uint64, waits *Sending, err error) {
	if o.Tensor != nil {
		if err := l.fits(*o.Tensor); err != nil {
			return 0, nil, err
		}
	}
	complete, err := l.completed(o.Completion)
	if err != nil {
		return 0, nil, err
	}
	s := l.session
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	ch, err := s.channel(channel)
	if err == nil {
		err = ch.unshared("sent to")
	}
	if err != nil {
		return 0, nil, err
	}
	n := &Sending{lease: l, channel: ch, options: o, ready: complete}
	if err := n.possible(); err != nil {
		return 0, nil, err
	}
	if len(ch.senders) == 0 {
		full := ch.full()
		if full == nil {
			number, err := n.put()
			return number, nil, err
		}
		if ch.fails() {
			return 0, nil, full
		}
	}
	ch.senders = append(ch.senders, n)
	return 0, n, nil
}

// fails says whether a send that finds the channel full fails at once. Service.mu is held.
func (ch *channel) fails() bool {
	if ch.info.Mode == WorkQueue {
		return ch.info.Full == Fail
	}
	oldest := ch.frames[0].number
	return slices.ContainsFunc(ch.subs, func(sub *subscription) bool { return sub.policy == Fail && sub.needs(oldest) })
}

// Wait waits for the frame's turn and for room, up to limit, and sends it.
//
// Errors: those of [Session.Send]; [ErrTimeout], which names who is behind; the context's.
func (n *Sending) Wait(ctx context.Context, limit time.Duration) (number uint64, err error) {
	s, ch := n.lease.session, n.channel
	w := s.newWaiter(ctx, limit)
	defer w.stop()
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	defer func() {
		ch.senders = slices.DeleteFunc(ch.senders, func(other *Sending) bool { return other == n })
		ch.room.broadcast() // for the next in line
		if ch.over() {
			ch.hand() // the end
		}
	}()
	for {
		if err := s.alive(); err != nil {
			return 0, err
		}
		if err := n.possible(); err != nil {
			return 0, err
		}
		full := ch.full()
		if ch.senders[0] == n {
			if full == nil {
				return n.put()
			}
			if ch.fails() {
				return 0, full
			}
		}
		if full == nil {
			full = situation(ErrTimeout, "channel %q: %d other frames were to be sent first", ch.info.Name, len(ch.senders)-1)
		}
		if !w.wait(ch.room.next()) {
			if limit > 0 && w.err == nil {
				if !errors.Is(full, ErrTimeout) {
					full = situation(ErrTimeout, "%v", full)
				}
				full = fmt.Errorf("%w (waited %v)", full, limit)
			}
			return 0, w.cause(full)
		}
	}
}

// possible says why the frame cannot be sent at all: nil if it can. Service.mu is held.
func (n *Sending) possible() error {
	l, ch := n.lease, n.channel
	switch {
	case l.ended:
		return l.released()
	case !l.write:
		return situation(ErrInvalid, "lease %d was granted to read: only a write lease can be sent", l.id)
	case l.buffer.block.pool != ch.pool:
		return situation(ErrInvalid, "channel %q carries buffers of pool %q; buffer %d is of pool %q", ch.info.Name, ch.pool.info.Name,
			l.buffer.id, l.buffer.block.pool.info.Name)
	case ch.pool.closing:
		return ch.pool.ended()
	case ch.pool.svc.channelByID[ch.info.ID] != ch:
		return situation(ErrClosed, "channel %q is shut, and nobody is subscribed to it any more", ch.info.Name)
	}
	return nil
}

// put puts the frame into the channel, which has room. Service.mu is held.
func (n *Sending) put() (uint64, error) {
	l, ch, b := n.lease, n.channel, n.lease.buffer
	ready, err := l.ready(n.ready)
	if err != nil {
		return 0, err
	}
	ch.last++
	f := &frame{number: ch.last, sent: time.Now(), meta: n.options.Meta, buffer: b}
	if n.options.Tensor != nil {
		b.tensor = l.session.describe(*n.options.Tensor)
	}
	b.ready = ready
	b.frames++
	l.end(false, nil)
	b.event = n.options.published(n.ready, nil)
	if ch.info.Mode == WorkQueue {
		ch.enqueue(f)
	} else {
		ch.keep(f)
	}
	ch.hand()
	return f.number, nil
}
