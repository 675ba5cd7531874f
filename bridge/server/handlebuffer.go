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
	if err == nil {
		c.sendWaiting() // the client then knows at the reply which blocks it must unmap
	}
	c.answer(q, &wire.TrimReply{Bytes: n}, err)
}

func (c *connection) get(q uint32, r *wire.Get) {
	known := service.Known{Buffer: r.Buffer, Version: r.Version}
	l := leasing{c: c, q: q, wait: r.Wait, newer: known != service.Known{}, get: func(ctx context.Context, wait time.Duration) (service.GrantedLease, error) {
		return c.session.Get(ctx, r.Name, r.Write, known, wait)
	}}
	l.answer()
}

func (c *connection) lease(q uint32, r *wire.LeaseBuffer) {
	l := leasing{c: c, q: q, wait: r.Wait, get: func(ctx context.Context, wait time.Duration) (service.GrantedLease, error) {
		return c.session.Lease(ctx, r.Buffer, r.Generation, r.Write, wait)
	}}
	l.answer()
}

func (c *connection) allocRange(q uint32, r *wire.AllocRange) {
	l := leasing{c: c, q: q, get: func(context.Context, time.Duration) (service.GrantedLease, error) {
		return c.session.AllocateRange(r.Lease, r.Offset, convert.Tensor(r.Tensor))
	}}
	l.answer()
}

func returned(s *service.Session, r *wire.Returned) (wire.Reply, error) {
	gone, wait, err := s.Returned(r.Lease, r.Buffers)
	return &wire.ReturnedReply{Buffers: gone, Wait: convert.WireFences(wait)}, err
}

func (c *connection) cancelRequest(q uint32, r *wire.Cancel) {
	c.waits.stop(r.Request)
	c.done(q, nil)
}

func stats(s *service.Session, _ *wire.StatsRequest) (wire.Reply, error) {
	return &wire.StatsReply{Stats: convert.WireServiceStats(s.View().Stats())}, nil
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

func (c *connection) done(q uint32, err error) { c.answer(q, &wire.EmptyReply{}, err) }

// answerInTime answers request q by the function that `attempt` returns. If an attempt that does not wait fails with the error `missing`, and the
// request may wait, answerInTime makes another attempt, from a new goroutine.
func (c *connection) answerInTime(q uint32, wait uint64, missing error, attempt func(ctx context.Context, wait time.Duration) (answer func(), err error)) {
	answer, err := attempt(c.ctx, 0)
	if wait == 0 || q == 0 || !errors.Is(err, missing) {
		answer()
		return
	}
	c.waitFor(q, err, func(ctx context.Context) func() {
		answer, _ := attempt(ctx, milliseconds(wait)) // the answer has the error
		return answer
	})
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
	c.answer(q, &wire.PoolReply{Pool: out}, nil, files...)
}

func publishBuffer(s *service.Session, r *wire.Publish) (wire.Reply, error) {
	complete, err := convert.Completion(r.Ready, r.Event)
	if err != nil {
		return nil, err
	}
	p := mempool.Publication{Name: r.Name, Keep: r.Keep, WhileUsed: r.WhileUsed, Replace: r.Replace, Version: r.Version, Completion: complete}
	if r.Tensor != nil {
		t := convert.Tensor(*r.Tensor)
		p.Tensor = &t
	}
	version, err := s.Publish(r.Lease, p)
	return &wire.PublishReply{Version: version}, err
}

// alloc answers with a new lease. A large allocation takes long, so alloc starts a new goroutine for it: the session's other requests do
// not wait, and the client gets notices that the allocation still runs.
func (c *connection) alloc(q uint32, r *wire.Alloc) {
	t := convert.Tensor(r.Tensor)
	l := leasing{c: c, q: q, wait: r.Wait, get: func(ctx context.Context, wait time.Duration) (service.GrantedLease, error) {
		return c.session.Allocate(ctx, r.Pool, t, min(wait, milliseconds(r.Wait)), wait) // wait may be longer: see needsRetry
	}}
	n, err := t.Extent()
	if q == 0 || err != nil || n < c.limits.Large {
		l.answer()
		return
	}
	c.waitFor(q, typed.Errorf(mempool.ErrBusy, "an allocation of %d bytes counts as a request that waits", n), func(ctx context.Context) func() {
		defer c.tellWorking(q)()
		g, err := l.get(ctx, 0)
		g, err = l.retry(ctx, g, err)
		return func() { c.replyLease(q, g, err) }
	})
}
