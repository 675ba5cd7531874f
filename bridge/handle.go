package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

func (c *serverConn) trim(q uint32, r *wire.Trim) {
	n, err := c.session.TrimPool(r.Pool, r.Keep)
	if err != nil {
		c.fail(q, err)
		return
	}
	c.reply(q, &wire.TrimReply{Bytes: n}, nil)
}

func (c *serverConn) get(q uint32, r *wire.Get) {
	c.grant(q, r.Wait, func(ctx context.Context, wait time.Duration) (service.Grant, error) {
		return c.session.Get(ctx, r.Name, r.Write, wait)
	})
}

func (c *serverConn) lease(q uint32, r *wire.LeaseBuffer) {
	c.grant(q, r.Wait, func(ctx context.Context, wait time.Duration) (service.Grant, error) {
		return c.session.Lease(ctx, r.Buffer, r.Generation, r.Write, wait)
	})
}

func (c *serverConn) cancelRequest(q uint32, r *wire.Cancel) {
	c.stopWaiting(r.Request)
	c.done(q, nil)
}

func (c *serverConn) stats(q uint32, _ *wire.StatsRequest) {
	c.reply(q, &wire.StatsReply{Stats: wireStats(c.session.Stats())}, nil)
}

func releaseLeases(s *service.Session, r *wire.Release) error {
	return s.Release(r.Failed, fencesOf(r.Done), append([]uint64{r.Lease}, r.Also...)...)
}

func (c *serverConn) done(q uint32, err error) {
	if err != nil {
		c.fail(q, err)
		return
	}
	c.reply(q, &wire.EmptyReply{}, nil)
}

func (c *serverConn) create(q uint32, r *wire.Create) {
	access, err := accessOf(r.UIDs, r.GIDs)
	spec := mempool.PoolSpec{Name: r.Name, Kind: mempool.Kind(r.Kind), Device: r.Device, MaxBytes: r.MaxBytes,
		SessionBytes: r.MaxSessionBytes, UserBytes: r.MaxUserBytes, Access: access}
	c.pool(q, func(ctx context.Context) (*service.Pool, error) {
		switch {
		case err != nil:
			return nil, err
		case r.Ensure:
			return c.session.EnsurePool(ctx, spec)
		}
		return c.session.CreatePool(spec)
	})
}

func (c *serverConn) open(q uint32, r *wire.Open) {
	if (r.Pool != 0) == (r.Name != "") {
		c.fail(q, situation.Of(ErrInvalid, "a pool is opened by its name or by its id; exactly one of them, not name %q and id %d", r.Name, r.Pool))
		return
	}
	c.pool(q, func(ctx context.Context) (*service.Pool, error) {
		if r.Pool != 0 {
			return c.session.FindPool(r.Pool)
		}
		return c.session.OpenPool(ctx, r.Name, milliseconds(r.Wait))
	})
}

// errWaits ends a wait for a pool that must not hold up the requests behind it.
var errWaits = situation.Of(ErrBusy, "the pool is not there yet")

// atOnce is a context for who must not wait.
var atOnce = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errWaits)
	return ctx
}()

// pool answers with the pool that get finds: at once if it can, and otherwise from a goroutine of its own.
func (c *serverConn) pool(q uint32, get func(context.Context) (*service.Pool, error)) {
	p, err := get(atOnce)
	if q != 0 && errors.Is(err, errWaits) {
		c.waitFor(q, err, func(ctx context.Context) func() {
			p, err := get(ctx)
			return func() { c.replyPool(q, p, err) }
		})
		return
	}
	c.replyPool(q, p, err)
}

func (c *serverConn) replyPool(q uint32, p *service.Pool, err error) {
	if err != nil {
		c.fail(q, err)
		return
	}
	out := wirePool(p.Info())
	x, files := wireExport(p.Export())
	out.Export = x
	c.reply(q, &wire.PoolReply{Pool: out}, files)
}

func publishBuffer(s *service.Session, r *wire.Publish) error {
	complete, err := completionOf(r.Ready, r.Event)
	if err != nil {
		return err
	}
	p := mempool.Publication{Name: r.Name, Keep: r.Keep, Replace: r.Replace, Completion: complete}
	if r.Tensor != nil {
		t := tensorOf(*r.Tensor)
		p.Tensor = &t
	}
	return s.Publish(r.Lease, p)
}

// alloc answers with a new lease. One on much memory has a goroutine of its own: to take the memory takes long, in which the
// session's other requests are carried out, and its client is told that work goes on.
func (c *serverConn) alloc(q uint32, r *wire.Alloc) {
	t := tensorOf(r.Tensor)
	get := func(ctx context.Context, wait time.Duration) (service.Grant, error) {
		return c.session.Allocate(ctx, r.Pool, t, wait)
	}
	n, err := t.Extent()
	if q == 0 || err != nil || n < c.server.limits.large {
		c.grant(q, r.Wait, get)
		return
	}
	c.waitFor(q, situation.Of(ErrBusy, "an allocation of %d bytes counts as a request that waits", n), func(ctx context.Context) func() {
		defer c.tellWorking(q)()
		g, err := get(ctx, 0)
		g, err = c.insist(ctx, g, err, r.Wait, get)
		return func() { c.replyLease(q, g, err) }
	})
}

// tellWorking tells the client again and again that request q is being carried out, or with 0 one that all others wait behind,
// until stop is called. A client that does not read is not told.
func (c *serverConn) tellWorking(q uint32) (stop func()) {
	over, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-time.After(c.server.limits.working):
				c.mention(&wire.Working{Request: uint64(q)})
			case <-over:
				return
			}
		}
	}()
	return func() {
		close(over)
		<-stopped
	}
}

type getLease = func(ctx context.Context, wait time.Duration) (service.Grant, error)

// grant answers with the lease that get returns, at once if it can be had at once.
func (c *serverConn) grant(q uint32, wait uint64, get getLease) {
	if q == 0 {
		return // nobody would ever know of the lease
	}
	g, err := get(c.ctx, 0)
	_, again := c.another(g, err, wait)
	if again == nil {
		c.replyLease(q, g, err)
		return
	}
	c.grantLater(q, wait, get, g, err, again)
}

// grantLater answers with the lease that comes of a first attempt in time; again says why there was none yet.
func (c *serverConn) grantLater(q uint32, wait uint64, get getLease, g service.Grant, err, again error) {
	refused := c.wait(q, func(ctx context.Context) func() {
		g, err := c.insist(ctx, g, err, wait, get)
		return func() { c.replyLease(q, g, err) }
	})
	if refused != nil {
		refused = fmt.Errorf("%w (%s)", refused, again.Error())
		if err == nil { // nobody would ever know of the lease
			refused = errors.Join(refused, g.Lease.Undo(false))
		}
		c.fail(q, refused)
	}
}

// another says why what came of a first attempt, a lease or an error, may become a usable lease within limit; nil if it is
// what the client gets.
func (c *serverConn) another(g service.Grant, err error, wait uint64) (limit time.Duration, again error) {
	limit = milliseconds(wait)
	waitable := errors.Is(err, ErrNotFound) || errors.Is(err, ErrBusy) || errors.Is(err, ErrLimit) || errors.Is(err, ErrOutOfMemory)
	awaits := err == nil && c.mustAwaitWork(g)
	if awaits || errors.Is(err, mempool.ErrRecalling) {
		limit = max(limit, c.server.limits.recall)
	}
	if errors.Is(err, mempool.ErrWanted) {
		limit = max(limit, service.WantedTime)
	}
	switch {
	case awaits:
		return limit, situation.Of(ErrBusy, "work on the buffer is under way")
	case limit > 0 && waitable:
		return limit, err
	}
	return 0, nil
}

// insist waits for what may come of a first attempt.
func (c *serverConn) insist(ctx context.Context, g service.Grant, err error, wait uint64, get getLease) (service.Grant, error) {
	limit, again := c.another(g, err, wait)
	if again != nil && err != nil {
		g, err = get(ctx, limit)
	}
	if err == nil && c.mustAwaitWork(g) {
		if err = g.Lease.AwaitWork(ctx, max(limit, c.server.limits.recall)); err != nil {
			return g, errors.Join(err, g.Lease.Undo(false))
		}
		g.Info.Wait = nil
	}
	return g, err
}

// waitFor answers request q, which err says cannot be answered now, from a goroutine of its own: attempt waits, and what
// it returns answers.
func (c *serverConn) waitFor(q uint32, err error, attempt func(context.Context) (answer func())) {
	if refused := c.wait(q, attempt); refused != nil {
		c.fail(q, fmt.Errorf("%w (%s)", refused, err.Error()))
	}
}

// wait is waitFor for who says itself what it means that too many requests wait.
func (c *serverConn) wait(q uint32, attempt func(context.Context) (answer func())) error {
	ctx, cancel := context.WithCancel(c.ctx)
	key, refused := c.startWaiting(q, cancel)
	if refused != nil {
		cancel()
		return refused
	}
	go func() {
		defer c.work.Done()
		answer := attempt(ctx)
		c.waited(key)           // first: the client may use the number again once it has the reply
		if c.ctx.Err() == nil { // or goodbye is the answer
			answer()
		}
	}()
	return nil
}

// startWaiting notes that request q waits until cancel is called, and counts its goroutine.
func (c *serverConn) startWaiting(q uint32, cancel context.CancelFunc) (key uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key = uint64(q)
	if q == 0 {
		c.unnamed++
		key = wire.MaxQuery + c.unnamed
	}
	if len(c.waiting) >= c.server.limits.waiting {
		return 0, situation.Of(ErrLimit, "%d requests of this session wait, which is the limit: wait for an answer, or cancel one", len(c.waiting))
	}
	if most := int(c.server.maxWaits.Load()); c.server.waits.Add(1) > int64(most) {
		c.server.waits.Add(-1)
		return 0, &service.LimitError{Limit: "waits", Max: most, Who: "the service", What: "requests that wait", Have: most, Advice: "ask again later"}
	}
	c.waiting[key] = cancel
	c.work.Add(1)
	return key, nil
}

// waits says whether a request with that number waits.
func (c *serverConn) waits(q uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return q != 0 && c.waiting[uint64(q)] != nil
}

// waited notes that a request waits no more.
func (c *serverConn) waited(key uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting[key]()
	delete(c.waiting, key)
	c.server.waits.Add(-1)
}

// stopWaiting makes request q fail, if it waits.
func (c *serverConn) stopWaiting(q uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q > wire.MaxQuery {
		return
	}
	if cancel := c.waiting[q]; cancel != nil {
		cancel()
	}
}
