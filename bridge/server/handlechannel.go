package server

import (
	"context"
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
	out, files := convert.WireExport(x)
	c.answer(q, &wire.TimelineReply{Timeline: id, Words: wire.TimelineWords, Export: *out}, err, files...)
}

func makeChannel(s *service.Session, r *wire.MakeChannel) (wire.Reply, error) {
	info, err := s.MakeChannel(mempool.ChannelSpec{Name: r.Name, Pool: r.Pool, Mode: mempool.ChannelMode(r.Mode),
		Capacity: int(min(r.Capacity, math.MaxInt32)), Full: mempool.FullPolicy(r.Full), MaxDeliveries: int(min(r.MaxDeliveries, math.MaxInt32))})
	return &wire.ChannelReply{Channel: convert.WireChannelIdentity(info)}, err
}

func (c *connection) find(q uint32, r *wire.Find) {
	c.answerInTime(q, r.Wait, mempool.ErrNotFound, func(ctx context.Context, wait time.Duration) (func(), error) {
		info, err := c.session.FindChannel(ctx, r.Name, wait)
		return func() { c.answer(q, &wire.ChannelReply{Channel: convert.WireChannelIdentity(info)}, err) }, err
	})
}

func (c *connection) awaitConsumers(q uint32, r *wire.AwaitConsumers) {
	c.answerInTime(q, r.Wait, mempool.ErrTimeout, func(ctx context.Context, wait time.Duration) (func(), error) {
		err := c.session.Channel(r.Channel).AwaitConsumers(ctx, r.Count, wait)
		return func() { c.done(q, err) }, err
	})
}
