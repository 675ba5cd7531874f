package bridge

import (
	"context"
	"errors"
	"iter"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// Frame is a buffer that came through a channel.
type Frame struct {
	// Lease is a read lease on the buffer; nil where an error came with the frame.
	Lease *Lease
	// Seq is the frame's number in the channel, from 1. A queue skips numbers.
	Seq uint64
	// Time is when it was sent.
	Time time.Time
	// Meta is what the sender said about it.
	Meta map[string]string
	// Dropped is how many frames were missed since the last.
	Dropped uint64

	channel  *mempool.ChannelInfo
	settled  atomic.Bool
	unmapped *Lease // which is ended once it is known whether another frame is asked for
}

// Frames subscribes to the channel and yields its frames. Each is to be released, which ends its lease. Asking for the next
// acknowledges the frame before it, released or not, unless o says ManualAck. A frame whose content will never be complete
// comes with [ErrProducerDied] and without a lease, and one that cannot be mapped here with what says why; others follow.
// An error without a frame is the last. When the channel is closed, the frames end without one: those of a queue once every
// frame is acknowledged. A frame of a queue that the loop was left with can still be settled; if it is not, another
// subscriber gets it when it cannot be mapped here, or when the session ends.
func (ch *Channel) Frames(ctx context.Context, o mempool.SubscribeOptions) iter.Seq2[*Frame, error] {
	return func(yield func(*Frame, error) bool) {
		s, err := ch.consume(ctx, o)
		if err != nil {
			yield(nil, err)
			return
		}
		s.deliver(ctx, o.ManualAck, yield)
	}
}

// deliver yields frames until there are no more, or the caller wants no more.
func (s *consuming) deliver(ctx context.Context, manual bool, yield func(*Frame, error) bool) {
	var back *Lease // of a frame that goes back last, or it would come here again
	defer func() {
		s.abandon()
		if back != nil {
			_ = back.end(true)
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
		back = f.unmapped // for a loop that is left, by a panic too
		if !yield(f, err) {
			return
		}
		back = nil
		switch { // what is sent here fails with the connection, of which next tells
		case f.unmapped != nil:
			_ = f.unmapped.end(manual || ctx.Err() != nil)
		case !manual && f.Lease != nil && f.settled.CompareAndSwap(false, true):
			_ = f.Lease.taken.decide(false)
		}
	}
}

// Release ends the frame's lease: the memory is not needed any more. A frame that was not settled before is acknowledged. It waits as
// [Lease.Release] does.
//
// Errors: [ErrReleased] if it had been released before.
func (f *Frame) Release() error { return f.ReleaseAfter(unasked) }

// ReleaseAfter is Release for memory that queues of the caller's still use: the sender writes it again after what they hold now. Of several
// queues the first waits for the others: here, until ctx ends, where it is one that cannot wait by itself.
//
// Errors: those of Release; [ErrTimeout] and ctx's from waiting.
func (f *Frame) ReleaseAfter(ctx context.Context, queues ...mempool.Queue) error {
	if f.Lease == nil {
		return nil
	}
	f.settled.Store(true)
	return f.Lease.release(ctx, false, queues...)
}

// Ack acknowledges the frame: in a queue it goes to nobody else, in a broadcast it holds no sender back any more. The memory
// stays until the frame is released.
//
// Errors: [ErrSettled] if it was acknowledged, by Release or by asking for the next frame too, or given back before;
// [ErrDisconnected] and [ErrClosed] if the session has ended, which gave the frame back.
func (f *Frame) Ack() error { return f.settle(false) }

// Requeue gives a frame of a queue back to it, in its place: another subscriber gets it, or this one again. The memory stays
// until the frame is released.
//
// Errors: those of [Frame.Ack]; [ErrInvalid] in a broadcast.
func (f *Frame) Requeue() error {
	if ch := f.channel; ch.Mode != mempool.WorkQueue {
		return situation.Of(ErrInvalid, "channel %q is a broadcast, to which no frame is given back: every subscriber has its own; release it", ch.Name)
	}
	return f.settle(true)
}

func (f *Frame) settle(again bool) error {
	switch {
	case f.Lease == nil:
		return situation.Of(ErrInvalid, "frame %d came without a lease: there is nothing to acknowledge", f.Seq)
	case !f.settled.CompareAndSwap(false, true):
		return situation.Of(ErrSettled, "frame %d of channel %q was acknowledged or given back before", f.Seq, f.channel.Name)
	}
	err := f.Lease.taken.decide(again)
	if errors.Is(err, shmchannel.ErrReleased) || errors.Is(err, shmchannel.ErrLeft) {
		return situation.Of(ErrSettled, "frame %d of channel %q was released before, which settled it", f.Seq, f.channel.Name)
	}
	return err
}
