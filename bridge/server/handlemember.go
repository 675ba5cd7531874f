package server

import (
	"context"
	"errors"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

func (c *connection) join(q uint32, r *wire.Join) {
	if q == 0 {
		return // without a reply, the client would not know the member's id
	}
	spec := service.MemberSpec{Role: service.MemberRole(r.Role), Oldest: r.Oldest, Full: mempool.FullPolicy(r.Full)}
	switch {
	case (r.Channel == 0) == (r.Name == ""):
		c.fail(q, typed.Errorf(mempool.ErrInvalid, "a member joins a channel by the channel's id or by its name; exactly one of them, not id %d and name %q", r.Channel, r.Name))
		return
	case r.Channel != 0:
		m, err := c.session.Channel(r.Channel).Join(spec)
		c.replyJoined(q, m, err)
		return
	}
	c.answerInTime(q, r.Wait, mempool.ErrNotFound, func(ctx context.Context, wait time.Duration) (func(), error) {
		m, err := c.session.JoinChannel(ctx, r.Name, spec, wait)
		return func() { c.replyJoined(q, m, err) }, err
	})
}

// replyJoined answers with a new member. If the answer cannot be sent, the member leaves, because the client does not know of it.
func (c *connection) replyJoined(q uint32, m service.Joined, err error) {
	if err != nil {
		c.fail(q, err)
		return
	}
	x, files := convert.WireExport(m.Export)
	reply := &wire.JoinReply{Channel: convert.WireChannelIdentity(m.Channel), Seat: uint64(m.Seat), Member: m.ID, Export: *x}
	sent := c.timings.end(q)
	err = c.send(files, func(dst []byte) ([]byte, error) { return wire.AppendReply(dst, q, reply) })
	if err != nil {
		_ = c.session.Channel(m.Channel.ID).Member(m.ID).Leave() // this fails only if the member is gone
	}
	c.replySent(q, sent, err)
}

// enter lets a member take part in its channel. Before the reply, enter sends the client the files of those other members that the new
// member must know.
func (c *connection) enter(q uint32, r *wire.Enter) {
	others, err := c.session.Channel(r.Channel).Member(r.Member).Enter()
	for _, other := range others {
		c.sendMember(other)
	}
	c.done(q, err)
}

// mapBlock answers with the export of a block. As soon as the export is made, the service may recall the block. mapBlock holds c.sending
// until it has sent the export, so that the client gets the export before the service's notice that recalls the block.
func (c *connection) mapBlock(q uint32, r *wire.Map) {
	if q == 0 {
		return // the client wants no reply, so it would not get the export
	}
	c.sending.Lock()
	b, err := c.session.Channel(r.Channel).MapBlock(r.Block)
	var unsent error
	if err == nil {
		x, files := convert.WireExport(b.Export)
		out := &wire.MapReply{Generation: b.Generation, BlockBytes: b.Bytes, Export: *x}
		unsent = c.sendLocked(files, func(dst []byte) ([]byte, error) { return wire.AppendReply(dst, q, out) })
	}
	c.sending.Unlock()
	if unsent != nil {
		err = errors.Join(unsent, c.session.Dropped([]uint64{r.Block}))
	}
	if err != nil {
		c.fail(q, err)
	}
}
