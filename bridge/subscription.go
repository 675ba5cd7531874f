package bridge

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/internal/stream"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Subscription is a subscriber of a channel. It gets every frame since [Client.Subscribe] returned it. The caller takes the frames with Frames,
// or calls Close.
type Subscription struct {
	of      *subscription
	channel *Channel
	manual  bool
	over    atomic.Bool // Frames or Close was called
}

// Subscribe subscribes to a channel by name. It waits until the channel exists. A subscriber that waits gets the channel's frames from the
// first: if producers must wait for it (with the policy [Block] or [Fail]), they do so before their first frame, and a queue keeps its frames.
// With the other policies it begins with the oldest frame that the channel still keeps. If closed queues of this name still have frames, the
// subscriber takes the frames of the oldest of them.
//
// Errors: [ErrNotFound] at the deadline, [ErrInvalid], [ErrDenied], [ErrLimit], [ErrUnsupported].
func (c *Client) Subscribe(ctx context.Context, name string, o SubscribeOptions) (*Subscription, error) {
	return c.subscribe(ctx, session.Waiting, name, o)
}

// TrySubscribe is like [Client.Subscribe], but does not wait for the channel to exist.
//
// Errors: [ErrNotFound], and those of Subscribe.
func (c *Client) TrySubscribe(ctx context.Context, name string, o SubscribeOptions) (*Subscription, error) {
	return c.subscribe(ctx, session.Once, name, o)
}

func (c *Client) subscribe(ctx context.Context, try session.Attempt, name string, o mempool.SubscribeOptions) (*Subscription, error) {
	s, err := c.streams.Consume(ctx, try, name, o)
	if err != nil {
		return nil, err
	}
	return &Subscription{of: &subscription{s, c}, channel: &Channel{client: c, stream: c.streams.Channel(*s.Channel())}, manual: o.ManualAck}, nil
}

// String describes the subscription for people.
func (s *Subscription) String() string { return fmt.Sprintf("subscription to %v", s.channel) }

// Channel returns the channel.
func (s *Subscription) Channel() *Channel { return s.channel }

// Producers returns the channel's producers, also those that left. At the end of a loop, it says how each left. If another producer got the
// place of one that left, that one is missing. Once the subscription has ended, the result stays.
func (s *Subscription) Producers() []ChannelProducer {
	found, _ := s.of.Producers()
	return found
}

// Frames yields the frames, as [Channel.Frames] does. The subscription ends with the loop.
func (s *Subscription) Frames(ctx context.Context) iter.Seq2[*Frame, error] {
	return func(yield func(*Frame, error) bool) {
		if !s.over.CompareAndSwap(false, true) {
			yield(nil, typed.Errorf(ErrClosed, "the subscription to channel %q has ended: subscribe again", s.channel.Identity().Name))
			return
		}
		s.of.deliver(ctx, s.manual, yield)
	}
}

// Close ends a subscription whose frames the caller does not take. It does nothing if Frames was called: leave that loop, or end its context.
func (s *Subscription) Close() {
	if s.over.CompareAndSwap(false, true) {
		s.of.Leave()
	}
}

// subscription is one loop over the frames of a channel.
type subscription struct {
	*stream.Consumer
	client *Client
}

// received holds a Frame, its lease and its hand in one allocation.
type received struct {
	Frame
	lease Lease
	hand  stream.Hand
}

func (ch *Channel) subscribe(ctx context.Context, o mempool.SubscribeOptions) (*subscription, error) {
	s, err := ch.stream.Consume(ctx, o)
	return &subscription{s, ch.client}, err
}

// deliver yields frames until no frame will come any more or the caller ends the loop.
func (s *subscription) deliver(ctx context.Context, manual bool, yield func(*Frame, error) bool) {
	var back *Lease // lease of a frame that goes back to the queue after the consumer has left, so that another consumer gets it
	defer func() {
		s.Leave()
		if back != nil {
			_ = back.held.EndLocked(true) // nobody else has this lease
		}
	}()
	for {
		f, err := s.next(ctx)
		if f == nil {
			if err != nil {
				yield(nil, err)
			}
			return
		}
		back = f.unmapped // in case the loop ends here, even by a panic
		if !yield(f, err) {
			return
		}
		back = nil
		switch { // settling fails only if the connection is gone, and next reports this error
		case f.unmapped != nil:
			_ = f.unmapped.held.EndLocked(manual || ctx.Err() != nil)
		case !manual && f.Lease != nil && f.settled.CompareAndSwap(false, true):
			_ = settle(f.Lease, false)
		}
	}
}

// next waits for the next frame. It returns nil without an error if no frame will come any more. A frame and an error can come together.
// An error without a frame is the last result.
func (s *subscription) next(ctx context.Context) (f *Frame, err error) {
	if s.client.tracer != nil {
		var end func(*Frame, error)
		ctx, end = s.traceReceive(ctx)
		defer func() { end(f, err) }()
	}
	came, err := s.Take(ctx)
	switch {
	case came == nil:
		return nil, err
	case err != nil:
		return &Frame{Seq: came.Number, channel: s.Channel()}, err
	}
	r := &received{Frame: Frame{Seq: came.Number, Time: time.Unix(0, int64(came.Time)), Dropped: came.Missed, Delivery: came.Delivery,
		channel: s.Channel()}}
	r.lease.client = s.client
	r.Meta = shmchannel.DecodeMeta(came.Meta)
	err = s.Adopt(ctx, &r.lease.held, &r.hand, came)
	switch {
	case err == nil:
		r.Lease = &r.lease
	case errors.Is(err, ErrFrameCorrupt):
		return &Frame{Seq: came.Number, Dropped: came.Missed, Delivery: came.Delivery, channel: s.Channel()}, err
	case !errors.Is(err, ErrContentFailed):
		r.unmapped = &r.lease
	}
	return &r.Frame, err
}
