package server

import (
	"context"
	"errors"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

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

func (c *connection) trim(q uint32, r *wire.Trim) {
	n, err := c.session.TrimPool(r.Pool, r.Keep)
	if err == nil {
		c.sendWaiting() // the client then knows at the reply which blocks it must unmap
	}
	c.answer(q, &wire.TrimReply{Bytes: n}, err)
}
