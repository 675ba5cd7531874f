package server

import (
	"context"
	"errors"
	"math"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
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

func (c *connection) makeChannel(q uint32, r *wire.MakeChannel) {
	info, err := c.session.MakeChannel(mempool.ChannelSpec{Name: r.Name, Pool: r.Pool, Mode: mempool.ChannelMode(r.Mode),
		Capacity: int(min(r.Capacity, math.MaxInt32)), Full: mempool.FullPolicy(r.Full), MaxDeliveries: int(min(r.MaxDeliveries, math.MaxInt32))})
	c.replyChannel(q, info, err)
}

func (c *connection) replyChannel(q uint32, info mempool.ChannelIdentity, err error) {
	if err != nil {
		c.fail(q, err)
		return
	}
	c.reply(q, &wire.ChannelReply{Channel: convert.WireChannelIdentity(info)}, nil)
}

func (c *connection) find(q uint32, r *wire.Find) {
	info, err := c.session.FindChannel(c.ctx, r.Name, 0)
	if r.Wait == 0 || q == 0 || !errors.Is(err, mempool.ErrNotFound) {
		c.replyChannel(q, info, err)
		return
	}
	c.waitFor(q, err, func(ctx context.Context) func() {
		info, err := c.session.FindChannel(ctx, r.Name, milliseconds(r.Wait))
		return func() { c.replyChannel(q, info, err) }
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
