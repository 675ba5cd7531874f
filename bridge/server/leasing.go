package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// leasing is a request that the server answers with a lease.
type leasing struct {
	c     *connection
	q     uint32
	wait  uint64 // the request's time limit in milliseconds
	newer bool   // whether it also waits for what replaces content that has failed
	get   func(ctx context.Context, wait time.Duration) (service.GrantedLease, error)
}

// answer answers the request. If the request must wait, answer does so from a new goroutine, and otherwise at once.
func (l *leasing) answer() {
	if l.q == 0 {
		return // without a reply, the client would not know of the lease
	}
	g, err := l.get(l.c.ctx, 0)
	_, again := l.needsRetry(g, err)
	if again == nil {
		l.c.replyLease(l.q, g, err)
		return
	}
	l.answerLater(g, err, again)
}

// answerLater answers from a new goroutine with the lease that a second attempt returns. g and err are the result of the first attempt, and
// `again` says why a second attempt is needed.
func (l *leasing) answerLater(g service.GrantedLease, err, again error) {
	refused := l.c.wait(l.q, func(ctx context.Context) func() {
		g, err := l.retry(ctx, g, err)
		return func() { l.c.replyLease(l.q, g, err) }
	})
	if refused != nil {
		refused = fmt.Errorf("%w (%s)", refused, again.Error())
		if err == nil { // the client gets an error, so it would not know of the lease
			refused = errors.Join(refused, g.Lease.Undo(false))
		}
		l.c.fail(l.q, refused)
	}
}

// needsRetry says whether the server tries a second time to get a lease, after the first attempt returned g and err. If it must, `again` is
// the reason, and `limit` is how long the second attempt may wait. Otherwise `again` is nil, and the client gets the first result.
func (l *leasing) needsRetry(g service.GrantedLease, err error) (limit time.Duration, again error) {
	limit = milliseconds(l.wait)
	waitable := errors.Is(err, mempool.ErrNotFound) || errors.Is(err, mempool.ErrBusy) || errors.Is(err, mempool.ErrLimit) ||
		errors.Is(err, mempool.ErrOutOfMemory) || (l.newer && errors.Is(err, mempool.ErrContentFailed))
	awaits := err == nil && l.mustAwaitWork(g)
	if awaits || errors.Is(err, mempool.ErrRecalling) {
		limit = max(limit, l.c.limits.Recall)
	}
	if errors.Is(err, mempool.ErrWanted) {
		limit = max(limit, service.WantedTime)
	}
	switch {
	case awaits:
		return limit, typed.Errorf(mempool.ErrBusy, "work on the buffer is under way")
	case limit > 0 && waitable:
		return limit, err
	}
	return 0, nil
}

// retry calls `get` a second time if needsRetry says so and the first call failed. A client without timelines cannot wait until the work on a
// buffer has ended, so retry waits for this work.
func (l *leasing) retry(ctx context.Context, g service.GrantedLease, err error) (service.GrantedLease, error) {
	limit, again := l.needsRetry(g, err)
	if again != nil && err != nil {
		g, err = l.get(ctx, limit)
	}
	if err == nil && l.mustAwaitWork(g) {
		if err = g.Lease.AwaitWork(ctx, max(limit, l.c.limits.Recall)); err != nil {
			return g, errors.Join(err, g.Lease.Undo(false))
		}
		g.Grant.Wait = nil
	}
	return g, err
}

// mustAwaitWork reports whether the server must wait for the work on a buffer before the client gets the lease, because this client does
// not use fences.
func (l *leasing) mustAwaitWork(g service.GrantedLease) bool {
	return !l.c.features[wire.FeatureTimelines] && len(g.Grant.Wait) > 0
}
