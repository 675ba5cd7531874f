package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

func (c *connection) trim(q uint32, r *wire.Trim) {
	n, err := c.session.TrimPool(r.Pool, r.Keep)
	if err != nil {
		c.fail(q, err)
		return
	}
	c.reply(q, &wire.TrimReply{Bytes: n}, nil)
}

func (c *connection) get(q uint32, r *wire.Get) {
	c.grant(q, r.Wait, func(ctx context.Context, wait time.Duration) (service.GrantedLease, error) {
		return c.session.Get(ctx, r.Name, r.Write, wait)
	})
}

func (c *connection) lease(q uint32, r *wire.LeaseBuffer) {
	c.grant(q, r.Wait, func(ctx context.Context, wait time.Duration) (service.GrantedLease, error) {
		return c.session.Lease(ctx, r.Buffer, r.Generation, r.Write, wait)
	})
}

func (c *connection) cancelRequest(q uint32, r *wire.Cancel) {
	c.stopWaiting(r.Request)
	c.done(q, nil)
}

func (c *connection) stats(q uint32, _ *wire.StatsRequest) {
	c.reply(q, &wire.StatsReply{Stats: convert.WireServiceStats(c.session.View().Stats())}, nil)
}

func (c *connection) release(q uint32, r *wire.Release) {
	if r.Seen != nil {
		if err := c.session.Compare(*convert.Grant(*r.Seen)); err != nil {
			c.server.complaints.warn(c.peer.UID, "a session ends", "uid", c.peer.UID, "error", err)
			c.cancel(fmt.Errorf("%w: %w", convert.ErrProtocol, err))
		}
	}
	c.done(q, c.session.Release(r.Failed, convert.Fences(r.Done), append([]uint64{r.Lease}, r.Also...)...))
}

func (c *connection) done(q uint32, err error) {
	if err != nil {
		c.fail(q, err)
		return
	}
	c.reply(q, &wire.EmptyReply{}, nil)
}

func (c *connection) create(q uint32, r *wire.Create) {
	access, err := convert.Access(r.UIDs, r.GIDs)
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

func (c *connection) open(q uint32, r *wire.Open) {
	if (r.Pool != 0) == (r.Name != "") {
		c.fail(q, typed.Errorf(mempool.ErrInvalid, "a pool is opened by its name or by its id; exactly one of them, not name %q and id %d", r.Name, r.Pool))
		return
	}
	c.pool(q, func(ctx context.Context) (*service.Pool, error) {
		if r.Pool != 0 {
			return c.session.FindPool(r.Pool)
		}
		return c.session.OpenPool(ctx, r.Name, milliseconds(r.Wait))
	})
}

// errWaits means that the service cannot answer a request for a pool without waiting. The goroutine that reads requests does not wait, so
// that later requests do not wait either.
var errWaits = typed.Errorf(mempool.ErrBusy, "the pool is not there yet")

// atOnce is a context that is cancelled. A call with this context does not wait.
var atOnce = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errWaits)
	return ctx
}()

// pool answers with the pool that the function `get` returns. If the request must wait, pool answers from a new goroutine. Otherwise pool
// answers at once.
func (c *connection) pool(q uint32, get func(context.Context) (*service.Pool, error)) {
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

func (c *connection) replyPool(q uint32, p *service.Pool, err error) {
	if err != nil {
		c.fail(q, err)
		return
	}
	out := convert.WirePoolInfo(p.Info())
	x, files := convert.WireExport(p.Export())
	out.Export = x
	c.reply(q, &wire.PoolReply{Pool: out}, files)
}

func publishBuffer(s *service.Session, r *wire.Publish) error {
	complete, err := convert.Completion(r.Ready, r.Event)
	if err != nil {
		return err
	}
	p := mempool.Publication{Name: r.Name, Keep: r.Keep, Replace: r.Replace, Completion: complete}
	if r.Tensor != nil {
		t := convert.Tensor(*r.Tensor)
		p.Tensor = &t
	}
	return s.Publish(r.Lease, p)
}

// alloc answers with a new lease. A large allocation takes long, so alloc starts a new goroutine for it: the session's other requests do
// not wait, and the client gets notices that the allocation still runs.
func (c *connection) alloc(q uint32, r *wire.Alloc) {
	t := convert.Tensor(r.Tensor)
	get := func(ctx context.Context, wait time.Duration) (service.GrantedLease, error) {
		return c.session.Allocate(ctx, r.Pool, t, min(wait, milliseconds(r.Wait)), wait) // wait may be longer: see needsRetry
	}
	n, err := t.Extent()
	if q == 0 || err != nil || n < c.server.limits.Large {
		c.grant(q, r.Wait, get)
		return
	}
	c.waitFor(q, typed.Errorf(mempool.ErrBusy, "an allocation of %d bytes counts as a request that waits", n), func(ctx context.Context) func() {
		defer c.tellWorking(q)()
		g, err := get(ctx, 0)
		g, err = c.retryGet(ctx, g, err, r.Wait, get)
		return func() { c.replyLease(q, g, err) }
	})
}

// tellWorking tells the client at intervals that request q still runs, until the caller calls the function `stop`. If q is 0, the notices
// tell the client that its later requests wait for the running request. A client that does not read gets no notices.
func (c *connection) tellWorking(q uint32) (stop func()) {
	over, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-time.After(c.server.limits.Working):
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

type getLease = func(ctx context.Context, wait time.Duration) (service.GrantedLease, error)

// grant answers with the lease that the function `get` returns. If the request must wait, grant answers from a new goroutine. Otherwise
// grant answers at once.
func (c *connection) grant(q uint32, wait uint64, get getLease) {
	if q == 0 {
		return // without a reply, the client would not know of the lease
	}
	g, err := get(c.ctx, 0)
	_, again := c.needsRetry(g, err, wait)
	if again == nil {
		c.replyLease(q, g, err)
		return
	}
	c.grantLater(q, wait, get, g, err, again)
}

// grantLater answers from a new goroutine with the lease that a second attempt returns. g and err are the result of the first attempt, and
// `again` says why a second attempt is needed.
func (c *connection) grantLater(q uint32, wait uint64, get getLease, g service.GrantedLease, err, again error) {
	refused := c.wait(q, func(ctx context.Context) func() {
		g, err := c.retryGet(ctx, g, err, wait, get)
		return func() { c.replyLease(q, g, err) }
	})
	if refused != nil {
		refused = fmt.Errorf("%w (%s)", refused, again.Error())
		if err == nil { // the client gets an error, so it would not know of the lease
			refused = errors.Join(refused, g.Lease.Undo(false))
		}
		c.fail(q, refused)
	}
}

// needsRetry says whether the server tries a second time to get a lease, after the first attempt returned g and err. If it must, `again` is
// the reason, and `limit` is how long the second attempt may wait. Otherwise `again` is nil, and the client gets the first result.
func (c *connection) needsRetry(g service.GrantedLease, err error, wait uint64) (limit time.Duration, again error) {
	limit = milliseconds(wait)
	waitable := errors.Is(err, mempool.ErrNotFound) || errors.Is(err, mempool.ErrBusy) || errors.Is(err, mempool.ErrLimit) || errors.Is(err, mempool.ErrOutOfMemory)
	awaits := err == nil && c.mustAwaitWork(g)
	if awaits || errors.Is(err, mempool.ErrRecalling) {
		limit = max(limit, c.server.limits.Recall)
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

// retryGet calls `get` a second time if needsRetry says so and the first call failed. A client without timelines cannot wait until the work
// on a buffer has ended, so retryGet waits for this work.
func (c *connection) retryGet(ctx context.Context, g service.GrantedLease, err error, wait uint64, get getLease) (service.GrantedLease, error) {
	limit, again := c.needsRetry(g, err, wait)
	if again != nil && err != nil {
		g, err = get(ctx, limit)
	}
	if err == nil && c.mustAwaitWork(g) {
		if err = g.Lease.AwaitWork(ctx, max(limit, c.server.limits.Recall)); err != nil {
			return g, errors.Join(err, g.Lease.Undo(false))
		}
		g.Grant.Wait = nil
	}
	return g, err
}

// waitFor answers request q from a new goroutine: the function `attempt` waits, and returns a function that sends the answer. err says why
// the request cannot be answered at once; if too many requests wait, the client's error contains err.
func (c *connection) waitFor(q uint32, err error, attempt func(context.Context) (answer func())) {
	if refused := c.wait(q, attempt); refused != nil {
		c.fail(q, fmt.Errorf("%w (%s)", refused, err.Error()))
	}
}

// wait is like waitFor, but returns an error if too many requests wait: the caller then answers the request.
func (c *connection) wait(q uint32, attempt func(context.Context) (answer func())) error {
	ctx, cancel := context.WithCancel(c.ctx)
	key, refused := c.startWaiting(q, cancel)
	if refused != nil {
		cancel()
		return refused
	}
	go func() {
		defer c.work.Done()
		answer := attempt(ctx)
		c.waited(key)           // before the answer, because after the answer the client may use the number again
		if c.ctx.Err() == nil { // if the session has ended, goodbye is the answer
			answer()
		}
	}()
	return nil
}

// startWaiting records that request q waits, and counts its goroutine. cancel ends the wait.
func (c *connection) startWaiting(q uint32, cancel context.CancelFunc) (key uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key = uint64(q)
	if q == 0 {
		c.unnamed++
		key = wire.MaxQuery + c.unnamed
	}
	if len(c.waiting) >= c.server.limits.Waiting {
		return 0, typed.Errorf(mempool.ErrLimit, "%d requests of this session wait, which is the limit: wait for an answer, or cancel one", len(c.waiting))
	}
	if most := int(c.server.maxWaits.Load()); c.server.waits.Add(1) > int64(most-c.server.reserve(c.peer, most)) {
		c.server.waits.Add(-1)
		return 0, &service.LimitError{Limit: "waits", Max: most, Who: "the service", What: "requests that wait", Have: most, Advice: "ask again later"}
	}
	c.waiting[key] = cancel
	c.work.Add(1)
	return key, nil
}

// waits reports whether request q waits. If q is 0, the result is false.
func (c *connection) waits(q uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return q != 0 && c.waiting[uint64(q)] != nil
}

// waited records that a request no longer waits.
func (c *connection) waited(key uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting[key]()
	delete(c.waiting, key)
	c.server.waits.Add(-1)
}

// stopWaiting cancels request q, if it waits.
func (c *connection) stopWaiting(q uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q > wire.MaxQuery {
		return
	}
	if cancel := c.waiting[q]; cancel != nil {
		cancel()
	}
}
