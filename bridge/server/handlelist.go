package server

import (
	"cmp"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// list answers with a page of the list that the client asks for.
func (c *connection) list(q uint32, r *wire.List) {
	most := int(min(cmp.Or(r.Most, wire.MaxList), wire.MaxList))
	s, reply := c.session, &wire.ListReply{}
	var err error
	switch r.What {
	case wire.ListSessions:
		reply.Sessions, reply.Next, err = entries(s.Sessions, r.After, most, wireSession)
	case wire.ListChannels:
		reply.Channels, reply.Next, err = entries(s.Channels, r.After, most, wireChannelStatus)
	case wire.ListNames:
		reply.Names, reply.Next, err = entries(s.Names, r.After, most, wireName)
	case wire.ListBuffers:
		reply.Buffers, reply.Next, err = entries(s.Buffers, r.After, most, wireBuffer)
	case wire.ListLeases:
		reply.Leases, reply.Next, err = entries(s.Leases, r.After, most, wireLeaseStatus)
	default:
		err = situation.Of(mempool.ErrInvalid, "there is no list of %q: expected %s, %s, %s, %s or %s", r.What, wire.ListSessions, wire.ListChannels, wire.ListNames, wire.ListBuffers, wire.ListLeases)
	}
	if err != nil {
		c.fail(q, err)
		return
	}
	c.reply(q, reply, nil)
}

// entries returns a page of a list in the form of the wire, and where the next page begins.
func entries[T, W any](list func(after string, most int) (service.Page[T], error), after string, most int, describe func(T) W) ([]W, string, error) {
	page, err := list(after, most)
	out := make([]W, len(page.Entries))
	for i, e := range page.Entries {
		out[i] = describe(e)
	}
	return out, page.Next, err
}

func wireSession(s mempool.SessionInfo) wire.SessionEntry {
	return wire.SessionEntry{ID: s.ID, UID: uint64(s.UID), PID: uint64(max(s.PID, 0)), Program: s.Program, Began: wireTime(s.Began),
		Leases: uint64(s.Leases), Blocks: uint64(s.Blocks), Members: uint64(s.Members), Bytes: s.Bytes, Waits: uint64(s.Waits), For: s.WaitsFor,
		Since: wireTime(s.Since)}
}

// wireTime returns a time in nanoseconds since 1970, or 0 for the zero time.
func wireTime(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(max(t.UnixNano(), 0))
}

func wireLeaseStatus(l mempool.LeaseStatus) wire.LeaseEntry {
	return wire.LeaseEntry{ID: l.ID, Session: l.Session, UID: uint64(l.UID), PID: uint64(max(l.PID, 0)), Program: l.Program, Buffer: l.Buffer, Pool: l.Pool,
		Bytes: l.Bytes, BlockBytes: l.BlockBytes, Write: l.Write, Began: wireTime(l.Began), For: l.WaitsFor, Since: wireTime(l.Since)}
}

func wireChannelStatus(ch mempool.ChannelStatus) wire.ChannelEntry {
	return wire.ChannelEntry{Channel: convert.WireChannel(ch.ChannelInfo), UID: uint64(ch.UID), Producers: uint64(ch.Producers), Consumers: uint64(ch.Consumers),
		Closed: ch.Closed, Published: ch.Published, Waiting: ch.Waiting, Slowest: ch.Slowest,
		Used: ch.Used, Dropped: ch.Dropped}
}

func wireName(n mempool.NameInfo) wire.NameEntry {
	return wire.NameEntry{Name: n.Name, Buffer: n.Buffer, Pool: n.Pool, Bytes: n.Bytes, Tensor: convert.WireTensor(n.Tensor), UID: uint64(n.UID), Session: n.Session}
}

func wireBuffer(b mempool.BufferInfo) wire.BufferEntry {
	return wire.BufferEntry{ID: b.ID, Generation: b.Generation, Pool: b.Pool, Bytes: b.Bytes, BlockBytes: b.BlockBytes, Tensor: convert.WireTensor(b.Tensor),
		Writer: b.Writer, Readers: b.Readers, Reads: uint64(b.Reads), Names: uint64(b.Names), InChannel: b.InChannel}
}
