package bridge

import (
	"context"
	"fmt"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/internal/stream"
	"github.com/poolbridge/poolbridge/mempool"
)

// Publisher publishes frames of one description in a channel, from memory that it keeps. [Publisher.Loan] lends the program memory for the
// next frame, and [Publisher.Publish] publishes this memory. So a stream asks the service for nothing. Several goroutines may call the
// methods, and have several loans at a time.
//
// The memory of a Publisher is an arena: one lease of one buffer, which is divided into chunks of equal size. The first loan asks the service
// for an arena of a few chunks more than the channel keeps frames. If the pool has no room, the arena has fewer chunks. If all chunks are in
// use, because the program has many loans or because subscribers hold frames that the channel does not keep any more, the Publisher asks for
// a further arena. A Publisher that has not been used for a second gives the arenas back of which every chunk is free. It does so at once if
// other programs, or other parts of this program, wait for memory of the pool. The next loan asks for an arena again.
//
// A subscriber maps the whole arena, so all members of a channel can read all chunks of the arena. An arena has frames of one channel only.
type Publisher struct {
	channel *Channel
	stream  *stream.Publisher
}

// Publisher returns a Publisher for frames with the description t. It joins the channel if the client is not a producer of it yet.
//
// Errors: [ErrInvalid], [ErrDenied], [ErrClosed], [ErrLimit] if the channel has too many producers; the context's error.
func (ch *Channel) Publisher(ctx context.Context, t Tensor) (*Publisher, error) {
	p, err := ch.stream.Publisher(ctx, t)
	if err != nil {
		return nil, err
	}
	return &Publisher{channel: ch, stream: p}, nil
}

// String describes the publisher for people.
func (p *Publisher) String() string {
	return fmt.Sprintf("publisher of frames of %d bytes in %v", p.stream.Bytes, p.channel)
}

// Loan lends memory for a frame: a write lease on one chunk. The caller writes the content, and then passes the lease to [Publisher.Publish],
// or releases it. Loan prefers memory on which no work of readers is running. If there is no such memory, the lease waits for this work
// before it uses the memory, as every lease does.
//
// If no chunk is free, Loan waits until one comes back.
//
// Errors: [ErrLimit] or [ErrOutOfMemory] at the deadline: the error says how many chunks there are and what has them; [ErrClosed].
func (p *Publisher) Loan(ctx context.Context) (*Lease, error) { return p.loan(ctx, session.Waiting) }

// TryLoan is like [Publisher.Loan], but does not wait until a chunk comes back. It may ask the service for memory.
//
// Errors: those of Loan, at once.
func (p *Publisher) TryLoan(ctx context.Context) (*Lease, error) { return p.loan(ctx, session.Once) }

// Publish publishes a loan as a frame and returns the frame's number. The loan has ended then. In all else, Publish is like
// [Channel.Publish]: in particular, if it fails, the loan stays valid, unless ctx was cancelled.
//
// Errors: those of [Channel.Publish]; [ErrInvalid] if the lease is not a loan of this Publisher.
func (p *Publisher) Publish(ctx context.Context, l *Lease, o FrameOptions) (uint64, error) {
	return p.send(ctx, session.Waiting, l, o)
}

// TryPublish is like [Publisher.Publish], but does not wait for room in the channel.
//
// Errors: those of Publish; [ErrLimit] with every policy.
func (p *Publisher) TryPublish(ctx context.Context, l *Lease, o FrameOptions) (uint64, error) {
	return p.send(ctx, session.Once, l, o)
}

// Close ends the Publisher. It gives an arena back as soon as all chunks of the arena are free. The program can still use and release its
// loans. A second call does nothing. The result is always nil.
func (p *Publisher) Close() error {
	p.stream.Close()
	return nil
}

func (p *Publisher) loan(ctx context.Context, try session.Attempt) (l *Lease, err error) {
	c := p.channel.client
	if c.tracer != nil {
		var end func(*Lease, error)
		ctx, end = c.trace(ctx, &Operation{Name: OpAllocate, Channel: p.channel.stream.Identity.Name, Bytes: p.stream.Bytes})
		defer func() { end(l, err) }()
	}
	made := &Lease{client: c}
	if err := p.stream.Loan(ctx, try, &made.held); err != nil {
		return nil, err
	}
	return made, nil
}

func (p *Publisher) send(ctx context.Context, try session.Attempt, l *Lease, o mempool.FrameOptions) (number uint64, err error) {
	if l.client.tracer != nil {
		var end func(uint64, error)
		ctx, end = l.traceSend(ctx, p.channel.stream.Identity.Name, &o)
		defer func() { end(number, err) }()
	}
	return p.stream.Publish(ctx, try, &l.held, o)
}
