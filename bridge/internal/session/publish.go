package session

import (
	"context"
	"errors"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Publish publishes the buffer under a name. The lease becomes a read lease.
func (l *Lease) Publish(ctx context.Context, p mempool.Publication) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.AliveLocked(); err != nil {
		return err
	}
	if l.by != nil {
		return l.by.Nameless()
	}
	ready, err := l.ReadyLocked(ctx, p.Completion, nil)
	if err != nil {
		return err
	}
	r := &wire.Publish{Lease: l.info.ID, Name: p.Name, Keep: p.Keep, WhileUsed: p.WhileUsed, Replace: p.Replace, Version: p.Version, Ready: convert.WireFence(ready), Event: p.Handle(ready)}
	if p.Tensor != nil {
		if p.Tensor.Arrays != nil {
			return typed.Errorf(mempool.ErrInvalid, "a buffer gets several arrays when it is allocated: pass this Tensor to Allocate, and none to Publish")
		}
		if p.Tensor.LayoutBytes > 0 {
			return errNoArrays
		}
		t := convert.WireTensor(*p.Tensor)
		r.Tensor = &t
	}
	var reply wire.PublishReply
	err = l.session.do(ctx, r, &Call{Into: &reply})
	if _, refused := errors.AsType[*refusal](err); refused {
		return l.session.explain(err)
	}
	info := *l.info
	l.info, l.memory = &info, nil
	info.Write = false // also if no answer came, because the service may have published the buffer
	l.unsure = err != nil
	l.ordering().Ended(ready, p.Completion)
	if err != nil {
		return err // do not read reply: the receiving goroutine may still write it
	}
	l.version.Store(reply.Version)
	if p.Tensor != nil {
		info.Tensor = p.Tensor.Clone()
	}
	return nil
}

// ReadyLocked returns the fence after which the content is complete, or nil if the content is complete now. `gone` reports whether the
// memory already has other content; nil means that the service knows.
func (l *Lease) ReadyLocked(ctx context.Context, c mempool.Completion, gone func() bool) (*mempool.Fence, error) {
	if clock := l.session.Timelines.Own(); c.Ready != nil && clock != nil {
		clock.Published(*c.Ready, l.unreadable(gone))
	}
	if l.order.Load() == nil && len(c.After) == 0 && c.Event == nil {
		return c.Ready, nil
	}
	m, err := l.reachLocked()
	if err != nil {
		return nil, err
	}
	if _, err := l.session.Timelines.Clock(ctx); err != nil && ctx.Err() != nil { // make the timeline now, so that Release need not ask for it
		return nil, err
	}
	return l.ordering().Ready(ctx, m.Queue(), c)
}

// unreadable returns a function that says whether the memory that the lease now publishes is gone: nobody can read the content any more.
func (l *Lease) unreadable(gone func() bool) func(context.Context) (bool, error) {
	s, info := l.session, l.info
	return func(ctx context.Context) (bool, error) {
		s.Collect(ctx, info.Pool)
		if gone != nil && gone() {
			return true, nil
		}
		r := &wire.LeaseBuffer{Buffer: info.Buffer, Generation: info.Generation}
		l := new(Lease)
		err := s.Blocks.Obtain(ctx, l, Once, r, &r.Wait)
		switch {
		case err == nil:
			return false, l.Release(Unasked, false)
		case errors.Is(err, mempool.ErrStale):
			return true, nil
		case errors.Is(err, mempool.ErrBusy), errors.Is(err, mempool.ErrContentFailed), errors.Is(err, mempool.ErrProducerDied):
			return false, nil
		}
		return false, err
	}
}

// SentLocked ends a lease that was published as a frame: the channel has its memory now.
func (l *Lease) SentLocked() error {
	l.ended = true
	return l.endOrder()
}

// UnsentLocked handles a lease that was not published because of err. The lease stays valid, unless ctx was cancelled: then UnsentLocked
// ends the lease, and the memory can be reused after the fence `ready` is reached.
func (l *Lease) UnsentLocked(ctx context.Context, err error, ready *mempool.Fence) error {
	if !errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	defer l.Forget()
	return errors.Join(err, l.abortLocked(ready))
}

// UnjoinedLocked is like UnsentLocked, for a lease that was not published because the client could not join the channel. If ctx was
// cancelled, UnjoinedLocked first makes the fence that is reached when the work on the memory ends.
func (l *Lease) UnjoinedLocked(ctx context.Context, err error, o mempool.Completion) error {
	if !errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	ready, unknown := l.ReadyLocked(context.WithoutCancel(ctx), o, nil)
	if m, failed := l.reachLocked(); failed == nil && unknown != nil {
		l.session.Blocks.doubt(l.info.Block, m)
	}
	return errors.Join(l.UnsentLocked(ctx, err, ready), unknown)
}

// abortLocked ends a write lease that was not published, so no reader gets the content. Work on the memory may be running until the fence
// `ready` is reached.
func (l *Lease) abortLocked(ready *mempool.Fence) error {
	clock := l.session.Timelines.Own()
	if ready == nil || clock == nil || ready.Timeline != clock.Timeline() || ready.Validate() != nil { // the service accepts no such fence
		return l.EndLocked(true)
	}
	return l.EndLocked(true, *ready)
}
