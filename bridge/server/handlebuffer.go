package server

import (
	"context"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

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
	l := leasing{c: c, q: q, wait: r.Wait, get: func(ctx context.Context, limit time.Duration) (service.GrantedLease, error) {
		return c.session.Allocate(ctx, r.Pool, t, min(limit, milliseconds(r.Wait)), limit) // limit may be longer than r.Wait: see needsRetry
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
