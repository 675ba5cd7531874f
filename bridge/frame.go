package bridge

import (
	"context"
	"errors"
	"iter"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/internal/stream"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Frame is a buffer that came through a channel.
type Frame struct {
	// Lease is a read lease on the buffer. It is nil if an error came with the frame.
	Lease *Lease
	// Seq is the frame's number in the channel. Numbers begin at 1. In a queue some numbers are not used.
	Seq uint64
	// Time is when the frame was published.
	Time time.Time
	// Meta is the producer's data about the frame: see [mempool.FrameOptions].
	Meta map[string]any
	// Dropped is how many frames the subscriber missed between the previous frame that it got and this frame.
	Dropped uint64
	// Delivery is how often subscribers have got this frame of a queue, with this time: 1 for the first. In a broadcast it is 1. A frame comes
	// again if it is requeued, or if its subscriber ends before it acknowledges the frame.
	Delivery uint64

	channel  *mempool.ChannelIdentity
	settled  atomic.Bool
	unmapped *Lease // lease of a frame that could not be mapped; it ends when the loop asks for the next frame or ends
}

// Frames subscribes to the channel and yields its frames. The caller releases each frame, which ends the frame's lease. When the loop asks
// for the next frame, Frames acknowledges the previous frame, even if the caller has not released it. If o.ManualAck is true, Frames does
// not do this, and the caller acknowledges or releases each frame.
//
// A frame whose content will never be complete comes with [ErrContentFailed], which [ErrProducerDied] and [ErrFrameCorrupt] wrap, and
// without a lease; it is acknowledged. A frame that this process cannot map comes with an error that says why. After such an error the loop
// goes on with the next frame. An error without a frame is the last result. When the channel is closed, the loop ends without an error; in
// a queue it ends after all frames are acknowledged. o.NoProducers says what happens when no producer is left; with [FailWithoutProducers]
// the loop ends with [ErrNoProducers]. At the deadline of ctx, the error says who the producers are, or since when there is none.
//
// If the caller leaves the loop at a frame of a queue, the caller can still settle this frame. If the caller does not settle the frame,
// another subscriber gets it when the session ends. But if this process could not map the frame, another subscriber gets the frame as soon
// as the caller leaves the loop.
func (ch *Channel) Frames(ctx context.Context, o SubscribeOptions) iter.Seq2[*Frame, error] {
	return func(yield func(*Frame, error) bool) {
		s, err := ch.subscribe(ctx, o)
		if err != nil {
			yield(nil, err)
			return
		}
		s.deliver(ctx, o.ManualAck, yield)
	}
}

// Release ends the frame's lease. If the frame is not settled yet, Release acknowledges it. Release waits in the same cases as
// [Lease.Release]. A second call does nothing.
//
// Errors: those of [Lease.Release].
func (f *Frame) Release() error { return f.ReleaseAfter(session.Unasked) }

// ReleaseAfter releases the frame while work in the caller's queues still uses the memory. The producer can use the memory again only when
// the work that is in these queues now has ended. If there are several queues, the first queue waits for the other queues. If the first
// queue cannot wait, or no fence can be made, ReleaseAfter itself waits for the work in the queues.
//
// Errors: those of Release.
func (f *Frame) ReleaseAfter(ctx context.Context, queues ...Queue) error {
	if f.Lease == nil {
		return nil
	}
	f.settled.Store(true)
	return f.Lease.ReleaseAfter(ctx, queues...)
}

// Ack acknowledges the frame. In a queue no other subscriber gets the frame. In a broadcast, producers do not wait any more for this
// subscriber to be done with the frame. The memory stays valid until the frame is released.
//
// Errors: [ErrSettled] if the frame was acknowledged before (also by Release or by asking for the next frame) or requeued;
// [ErrDisconnected] and [ErrClosed] if the session has ended. The end of the session gave the frame back to the channel.
func (f *Frame) Ack() error { return f.settle(false) }

// Requeue puts a frame into its queue again, at its old place. Then another subscriber, or this subscriber again, gets the frame. The
// memory stays valid until the frame is released.
//
// Errors: those of [Frame.Ack]; [ErrInvalid] in a broadcast.
func (f *Frame) Requeue() error {
	if ch := f.channel; ch.Mode != mempool.WorkQueue {
		return typed.Errorf(ErrInvalid,
			"frames of channel %q, a broadcast, cannot be requeued, because every subscriber gets its own; release the frame", ch.Name)
	}
	return f.settle(true)
}

// settle settles the frame of a lease: see [stream.Hand.Settle].
func settle(l *Lease, again bool) error { return l.held.Holder().(*stream.Hand).Settle(again) }

func (f *Frame) settle(again bool) error {
	switch {
	case f.Lease == nil:
		return typed.Errorf(ErrInvalid, "frame %d came without a lease: there is nothing to acknowledge", f.Seq)
	case !f.settled.CompareAndSwap(false, true):
		return typed.Errorf(ErrSettled, "frame %d of channel %q was acknowledged or requeued before", f.Seq, f.channel.Name)
	}
	err := settle(f.Lease, again)
	if errors.Is(err, shmchannel.ErrReleased) || errors.Is(err, shmchannel.ErrLeft) {
		return typed.Errorf(ErrSettled, "frame %d of channel %q was released before, which settled it", f.Seq, f.channel.Name)
	}
	return err
}
