package bridge

import (
	"errors"
	"os"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// This file carries out what members of channels ask for.

func (c *serverConn) join(q uint32, r *wire.Join) {
	if q == 0 {
		return // nobody would ever know of the member
	}
	m, err := c.session.JoinChannel(r.Channel, service.MemberSpec{Role: service.MemberRole(r.Role), Oldest: r.Oldest, Full: mempool.FullPolicy(r.Full)})
	if err != nil {
		c.fail(q, err)
		return
	}
	x, files := wireExport(m.Export)
	c.reply(q, &wire.JoinReply{Slot: uint64(m.Slot), Member: m.ID, Export: *x}, files)
}

// enter lets a member take part. The files of the members that it must know go ahead of the reply.
func (c *serverConn) enter(q uint32, r *wire.Enter) {
	others, err := c.session.EnterChannel(r.Channel, r.Member)
	for _, other := range others {
		c.sendMember(other)
	}
	c.done(q, err)
}

// sendMember sends the file of a member, unless the file is closed by now: then nobody needs it any more.
func (c *serverConn) sendMember(n service.MemberCame) {
	out := &wire.Member{Channel: n.Channel, Role: string(n.Role), Slot: uint64(n.Slot), Member: n.Member, Export: wire.Export{FDs: 1}}
	_ = c.send([]*os.File{n.File}, func(dst []byte) ([]byte, error) { return wire.AppendNotice(dst, out) })
}

// mapBlock answers with the export of a block. The service may ask it back from then on, but not before the client has it.
func (c *serverConn) mapBlock(q uint32, r *wire.Map) {
	if q == 0 {
		return // nobody would ever have the export
	}
	c.sending.Lock()
	b, err := c.session.MapBlock(r.Channel, r.Block)
	var unsent error
	if err == nil {
		x, files := wireExport(b.Export)
		out := &wire.MapReply{Generation: b.Generation, BlockBytes: b.Bytes, Export: *x}
		unsent = c.transmit(files, func(dst []byte) ([]byte, error) { return wire.AppendReply(dst, q, out) })
	}
	c.sending.Unlock()
	if unsent != nil {
		err = errors.Join(unsent, c.session.Dropped([]uint64{r.Block}))
	}
	if err != nil {
		c.fail(q, err)
	}
}
