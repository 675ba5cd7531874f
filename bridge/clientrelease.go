package bridge

import (
	"context"
	"errors"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// Release ends the lease. incomplete says that what a write lease was for did not happen: the buffer has then failed.
//
// Errors: [ErrReleased] if it had ended before.
func (l *Lease) Release(incomplete bool) error { return l.release(incomplete) }

// ReleaseAfter is Release for memory that queues of the caller's still use: the next user of the memory comes after what
// they hold now.
//
// Errors: [ErrReleased].
func (l *Lease) ReleaseAfter(queues ...mempool.Queue) error { return l.release(false, queues...) }

func (l *Lease) release(incomplete bool, after ...mempool.Queue) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return hasEnded(l.info)
	}
	var done []mempool.Fence
	m, err := l.reach()
	if err == nil {
		if done, err = l.after(m.Queue(), after...); err != nil {
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
	return l.ordering().Ready(ctx, m.Queue(), c)
}

// after are the fences that end this client's work on the memory.
func (l *Lease) after(own mempool.Queue, queues ...mempool.Queue) ([]mempool.Fence, error) {
	if l.order.Load() == nil && len(queues) == 0 {
		return nil, nil
	}
	if l.taken == nil {
		return l.ordering().After(context.Background(), own, queues...)
	}
	t, err := l.ordering().AfterOne(context.Background(), own, queues...)
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
