package bridge

import (
	"context"
	"errors"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// Release ends the lease. If incomplete is true, the content of a write lease is not complete, and the buffer has failed. Release does not
// wait for an answer of the service. If the streams of the GPU can write words of a timeline, Release does not wait for GPU work: the next
// user of the memory waits for this package's work instead. Release waits for other running calls on the lease.
//
// Errors: [ErrReleased] if the lease had ended before.
func (l *Lease) Release(incomplete bool) error { return l.release(unasked, incomplete) }

// unasked is an ended context, for callers that must not wait for an answer of the service.
var unasked = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// ReleaseAfter is like [Lease.Release], for memory that queues of the caller still use: the next user of the memory waits for the present
// work of these queues. If the client has no timeline of its own yet, ReleaseAfter asks the service for the timeline. If ctx ends before
// the service answers, ReleaseAfter waits for the work of the queues instead.
//
// Errors: [ErrReleased].
func (l *Lease) ReleaseAfter(ctx context.Context, queues ...Queue) error {
	return l.release(ctx, false, queues...)
}

func (l *Lease) release(ctx context.Context, incomplete bool, after ...mempool.Queue) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client.tracer != nil {
		end := l.traceRelease(ctx)
		defer func() { end(err) }()
	}
	if l.ended {
		return l.client.hasEnded(l.info)
	}
	var done []mempool.Fence
	m, err := l.reach()
	if err == nil {
		if done, err = l.after(ctx, m.Queue(), after...); err != nil {
			l.client.doubt(l.info.Block, m)
		}
	}
	err = errors.Join(err, l.end(incomplete || err != nil, done...))
	if l.taken == nil {
		l.leave()
	}
	return err
}

// leave removes the lease from the client's list. leave must be the last step, because Close waits for leases that it finds in the list.
func (l *Lease) leave() {
	c := l.client
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leases.remove(l)
}

// completed returns the fence after which the content is complete, or nil if the content is complete now. The caller holds l.mu.
func (l *Lease) completed(ctx context.Context, c mempool.Completion) (*mempool.Fence, error) {
	if clock := l.client.session.Timelines.Own(); c.Ready != nil && clock != nil {
		clock.Published(*c.Ready, l.holder())
	}
	if l.order.Load() == nil && len(c.After) == 0 && c.Event == nil {
		return c.Ready, nil
	}
	m, err := l.reach()
	if err != nil {
		return nil, err
	}
	if _, err := l.client.session.Timelines.Clock(ctx); err != nil && ctx.Err() != nil { // make the timeline now, so that Release need not ask for it
		return nil, err
	}
	return l.ordering().Ready(ctx, m.Queue(), c)
}

// holder returns a function that says whether the memory that the lease now publishes is gone: nobody can read the content any more.
func (l *Lease) holder() func(context.Context) (bool, error) {
	c, info, s, round := l.client, l.info, l.slot, uint64(0)
	if s != nil {
		round = s.round.Load()
	}
	return func(ctx context.Context) (bool, error) {
		c.collectLeases(info.Pool)
		if s != nil && s.round.Load() != round {
			return true, nil
		}
		r := &wire.LeaseBuffer{Buffer: info.Buffer, Generation: info.Generation}
		l, err := c.lease(ctx, session.Once, r, &r.Wait)
		switch {
		case err == nil:
			return false, l.Release(false)
		case errors.Is(err, ErrStale):
			return true, nil
		case errors.Is(err, ErrBusy), errors.Is(err, ErrContentFailed), errors.Is(err, ErrProducerDied):
			return false, nil
		}
		return false, err
	}
}

// after returns the fences after which this client's work on the memory is done.
func (l *Lease) after(ctx context.Context, own mempool.Queue, queues ...mempool.Queue) ([]mempool.Fence, error) {
	if l.order.Load() == nil && len(queues) == 0 {
		return nil, nil
	}
	if l.taken == nil {
		return l.ordering().After(ctx, own, queues...)
	}
	t, err := l.ordering().AfterOne(ctx, own, queues...)
	if t == nil {
		return nil, err
	}
	return []mempool.Fence{*t}, err
}

// nameable returns an error if the lease's memory cannot be published under a name.
func (l *Lease) nameable() error {
	switch {
	case l.taken != nil:
		return situation.Of(ErrInvalid, "the lease of a frame is a read lease; ask for a write lease")
	case l.slot != nil:
		return situation.Of(ErrInvalid, "a loan of a publisher can only be published by this publisher; allocate a lease for content with a name")
	}
	return nil
}

// sendRelease tells the service that a lease has ended. If `unsure` is true, the client does not know whether it is a read lease.
func (c *Client) sendRelease(info *mempool.Grant, incomplete, unsure bool, done []mempool.Fence) error {
	r := &wire.Release{Lease: info.ID, Failed: incomplete, Done: convert.WireFences(done)}
	if c.checks && !unsure {
		seen := convert.WireGrant(*info)
		r.Seen = &seen
	}
	return c.session.Send(r)
}

// end tells the service that the lease has ended, and then counts one lease less on the block in the client. The order matters: the client
// may drop a block only after the service knows that the last lease on the block has ended.
func (l *Lease) end(incomplete bool, done ...mempool.Fence) error {
	l.ended = true
	switch {
	case l.taken != nil:
		defer l.client.session.Timelines.Unpin(l.info.Wait)
		err := errors.Join(l.taken.release(incomplete, done), l.endOrder())
		return errors.Join(err, l.client.left(l, l.info.Block, done...))
	case l.slot != nil:
		l.client.session.Timelines.Unpin(l.info.Wait)
		l.slot.end(l, done)
		return l.endOrder()
	}
	err := l.client.sendRelease(l.info, incomplete, l.unsure, done)
	return errors.Join(err, l.client.ended(l.info.Block, done...), l.endOrder())
}
