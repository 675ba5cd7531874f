package server

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

func (c *connection) timeline(q uint32, r *wire.GetTimeline) {
	id := r.Timeline
	var x mempool.Export
	var err error
	if id == 0 {
		id, x, err = c.session.Timeline()
	} else {
		x, err = c.session.FindTimeline(id)
	}
	if err != nil {
		c.fail(q, err)
		return
	}
	out, files := convert.WireExport(x)
	c.reply(q, &wire.TimelineReply{Timeline: id, Words: wire.TimelineWords, Export: *out}, files)
}

func makeChannel(s *service.Session, r *wire.MakeChannel) (wire.Reply, error) {
	info, err := s.MakeChannel(mempool.ChannelSpec{Name: r.Name, Pool: r.Pool, Mode: mempool.ChannelMode(r.Mode),
		Capacity: int(min(r.Capacity, math.MaxInt32)), Full: mempool.FullPolicy(r.Full), MaxDeliveries: int(min(r.MaxDeliveries, math.MaxInt32))})
	return &wire.ChannelReply{Channel: convert.WireChannelIdentity(info)}, err
}

func (c *connection) find(q uint32, r *wire.Find) {
	found := func(ctx context.Context, wait time.Duration) (wire.Reply, error) {
		info, err := c.session.FindChannel(ctx, r.Name, wait)
		return &wire.ChannelReply{Channel: convert.WireChannelIdentity(info)}, err
	}
	reply, err := found(c.ctx, 0)
	if r.Wait == 0 || q == 0 || !errors.Is(err, mempool.ErrNotFound) {
		c.answer(q, reply, err)
		return
	}
	c.waitFor(q, err, func(ctx context.Context) func() {
		reply, err := found(ctx, milliseconds(r.Wait))
		return func() { c.answer(q, reply, err) }
	})
}

func (c *connection) awaitConsumers(q uint32, r *wire.AwaitConsumers) {
	ch := c.session.Channel(r.Channel)
	err := ch.AwaitConsumers(c.ctx, r.Count, 0)
	if r.Wait == 0 || q == 0 || !errors.Is(err, mempool.ErrTimeout) {
		c.done(q, err)
		return
	}
	c.waitFor(q, err, func(ctx context.Context) func() {
		err := ch.AwaitConsumers(ctx, r.Count, milliseconds(r.Wait))
		return func() { c.done(q, err) }
	})
}
