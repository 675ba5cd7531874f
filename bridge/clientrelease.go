package bridge

import (
	"context"
	"errors"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// Release ends the lease. incomplete says that what a write lease was for did not happen: the buffer has then failed. It waits for no answer
// of the service, and for no work of a GPU whose streams can write words: the next user of the memory comes after what this package did
// with it. It waits for other calls of the lease that are under way.
//
// Errors: [ErrReleased] if it had ended before.
func (l *Lease) Release(incomplete bool) error { return l.release(unasked, incomplete) }

// unasked is a context for who must not ask the service for anything and wait for the answer.
var unasked = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// ReleaseAfter is Release for memory that queues of the caller's still use: the next user of the memory comes after what
// they hold now. The first time that the client names a queue it asks the service for its timeline: if ctx ends before the answer, the work
// of the queues is waited for instead.
//
// Errors: [ErrReleased].
func (l *Lease) ReleaseAfter(ctx context.Context, queues ...mempool.Queue) error {
	return l.release(ctx, false, queues...)
}

func (l *Lease) release(ctx context.Context, incomplete bool, after ...mempool.Queue) error {
	l.mu.Lock()
	defer l.mu.Unlock()
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

// leave takes the lease off the client's list: last, for Close waits for the leases that it finds.
func (l *Lease) leave() {
	c := l.client
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leases.remove(l)
}

// completed is when the content is complete; nil if it is. l.mu is held.
func (l *Lease) completed(ctx context.Context, c mempool.Completion) (*mempool.Fence, error) {
	if l.order.Load() == nil && len(c.After) == 0 && c.Event == nil && !c.EventOnly {
		return c.Ready, nil
	}
	m, err := l.reach()
	if err != nil {
		return nil, err
	}
	if _, err := l.client.Clock(ctx); err != nil && ctx.Err() != nil { // so that Release need not ask for it: it comes after an event, too
		return nil, err
	}
	return l.ordering().Ready(ctx, m.Queue(), c)
}

// after are the fences that end this client's work on the memory.
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

// hand waits for what the service does not know of, before it is handed the memory. l.mu is held.
func (l *Lease) hand(ctx context.Context) error {
	switch {
	case l.taken != nil:
		return situation.Of(ErrInvalid, "the lease of a frame is to read; ask for a write lease")
	case l.reused:
		if err := l.await(ctx, mempool.CPU); err != nil {
			return err
		}
		l.client.timelines.unpin(l.info.Wait)
		info := *l.info
		info.Wait = nil
		l.reused, l.info = false, &info
	}
	return nil
}

// end tells the service, and then lets the block go: it may be dropped only once no lease is left.
func (l *Lease) end(incomplete bool, done ...mempool.Fence) error {
	l.ended = true
	switch {
	case l.taken != nil:
		defer l.client.timelines.unpin(l.info.Wait)
		err := errors.Join(l.taken.release(incomplete, done), l.endOrder())
		return errors.Join(err, l.client.left(l, l.info.Block, done...))
	case l.reused:
		defer l.client.timelines.unpin(l.info.Wait)
		return errors.Join(l.client.giveUp(&loan{info: l.info, wait: l.info.Wait}, done...), l.endOrder())
	}
	err := l.client.send(0, &wire.Release{Lease: l.info.ID, Failed: incomplete, Done: wireFences(done)})
	return errors.Join(err, l.client.ended(l.info.Block, done...), l.endOrder())
}
