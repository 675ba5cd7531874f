package bridge

import (
	"context"
	"errors"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/stream"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

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
	s, err := ch.source(ctx).Consume(ctx, o)
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
