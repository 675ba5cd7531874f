package session

import (
	"context"
	"errors"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// Release ends the lease. If `incomplete` is true, the content of a write lease is not complete. The next user of the memory waits for this
// client's work and for the present work of the queues `after`.
func (l *Lease) Release(ctx context.Context, incomplete bool, after ...mempool.Queue) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.AliveLocked(); err != nil {
		return err
	}
	var done []mempool.Fence
	m, err := l.reachLocked()
	if err == nil {
		if done, err = l.workLocked(ctx, m.Queue(), after...); err != nil {
			l.session.Blocks.doubt(l.info.Block, m)
		}
	}
	err = errors.Join(err, l.EndLocked(incomplete || err != nil, done...))
	if !l.frame {
		l.Forget()
	}
	return err
}

// Unasked is an ended context, for callers that must not wait for an answer of the service.
var Unasked = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Forget removes the lease from the session's list. It must be the last step, because closing waits for leases that it finds in the list.
func (l *Lease) Forget() {
	b := &l.session.Blocks
	b.lockAndApply()
	defer b.mu.Unlock()
	b.leases.remove(l)
}

// workLocked returns the fences after which this client's work on the memory is done.
func (l *Lease) workLocked(ctx context.Context, own mempool.Queue, queues ...mempool.Queue) ([]mempool.Fence, error) {
	if l.order.Load() == nil && len(queues) == 0 {
		return nil, nil
	}
	if !l.frame && len(queues) < mempool.MaxDone { // one more for this client's own work
		return l.ordering().After(ctx, own, queues...)
	}
	t, err := l.ordering().AfterOne(ctx, own, queues...)
	if t == nil {
		return nil, err
	}
	return []mempool.Fence{*t}, err
}

// EndLocked ends the lease. It tells the service, or the lease's holder, and then counts one lease less on the block in the client. The
// order matters: the client may drop a block only after the service knows that the last lease on the block has ended. The caller calls
// Forget as its last step, unless the lease is of a frame.
func (l *Lease) EndLocked(incomplete bool, done ...mempool.Fence) error {
	l.ended = true
	b := &l.session.Blocks
	if l.by == nil {
		err := b.sendRelease(l.info, incomplete, l.unsure, done)
		return errors.Join(err, b.Ended(l.info.Block, done...), l.endOrder())
	}
	err := errors.Join(l.by.End(l, incomplete, done), l.endOrder())
	if l.frame {
		err = errors.Join(err, b.left(l, l.info.Block, done...))
	}
	b.session.Timelines.Unpin(l.info.Wait)
	return err
}

// endOrder closes the lease's order.
func (l *Lease) endOrder() error {
	if o := l.order.Load(); o != nil {
		return o.Close()
	}
	return nil
}

// ReleaseGrant releases a lease of which the caller has the memory: that of a frame that came back, of an arena, or one that is not mapped.
// `done` has this client's own fences.
func (b *Blocks) ReleaseGrant(info *mempool.Grant, incomplete bool, done ...mempool.Fence) error {
	err := b.sendRelease(info, incomplete, false, done)
	return errors.Join(err, b.Ended(info.Block, done...))
}

// sendRelease tells the service that a lease has ended. If `unsure` is true, the client does not know whether it is a read lease.
func (b *Blocks) sendRelease(info *mempool.Grant, incomplete, unsure bool, done []mempool.Fence) error {
	r := &wire.Release{Lease: info.ID, Failed: incomplete, Done: convert.WireFences(done)}
	if b.Checked && !unsure {
		seen := convert.WireGrant(*info)
		r.Seen = &seen
	}
	return b.session.Send(r)
}
