package bridge

import (
	"context"
	"iter"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

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

// Frames subscribes to the channel and yields its frames, each of which is to be released. A frame whose content will never
// be complete comes with [ErrProducerDied] and without a lease, and one that cannot be mapped here with what says why;
// others follow. An error without a frame is the last. When the channel is shut, the frames end without one.
func (ch *Channel) Frames(ctx context.Context, o mempool.SubscribeOptions) iter.Seq2[*Frame, error] {
	return func(yield func(*Frame, error) bool) {
		sub, err := ch.subscribe(ctx, o)
		if err != nil {
			yield(nil, err)
			return
		}
		defer sub.abandon()
		for {
			n, err := sub.receive(ctx)
			if err != nil {
				yield(nil, err)
				return
			}
			if n == nil {
				return
			}
			f, err := sub.frame(ctx, n)
			if !yield(f, err) {
				return
			}
		}
	}
}

// Release says that the frame is not needed any more, at the latest once what is in the queues that are named is done.
//
// Errors: [ErrReleased] if it had been released before.
func (f *Frame) Release(after ...mempool.Queue) error { return f.release(false, after...) }

// Return gives a frame of a queue back: somebody else gets it. In a broadcast it is Release.
func (f *Frame) Return() error { return f.release(true) }

func (f *Frame) release(again bool, after ...mempool.Queue) error {
	if f.Lease == nil {
		return nil
	}
	if err := f.Lease.release(again, after...); err != nil {
		return err
	}
	return f.sub.more()
}
