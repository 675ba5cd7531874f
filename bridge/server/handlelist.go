package server

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// list answers with a page of the list that the client asks for.
func (c *connection) list(q uint32, r *wire.List) {
	most := int(min(cmp.Or(r.Most, wire.MaxList), wire.MaxList))
	c.server.lists.wait(c.ctx)
	v, m := c.session.View(), listMemories.Get().(*listMemory)
	defer m.free()
	reply, err := &m.reply, error(nil)
	switch r.What {
	case wire.ListSessions:
		reply.Sessions, reply.Next, err = entries(v.Sessions, r.After, most, &m.sessions, reply.Sessions, convert.WireSessionInfo)
	case wire.ListChannels:
		reply.Channels, reply.Next, err = entries(v.Channels, r.After, most, &m.channels, reply.Channels, convert.WireChannelInfo)
	case wire.ListNames:
		reply.Names, reply.Next, err = entries(v.Names, r.After, most, &m.names, reply.Names, convert.WireNameInfo)
	case wire.ListBuffers:
		reply.Buffers, reply.Next, err = entries(v.Buffers, r.After, most, &m.buffers, reply.Buffers, convert.WireBufferInfo)
	case wire.ListLeases:
		reply.Leases, reply.Next, err = entries(v.Leases, r.After, most, &m.leases, reply.Leases, convert.WireLeaseInfo)
	case wire.ListMembers:
		members := func(after string, most int, into []mempool.MemberInfo) (service.Page[mempool.MemberInfo], error) {
			return v.Members(r.Channel, after, most, into)
		}
		reply.Members, reply.Next, err = entries(members, r.After, most, &m.members, reply.Members, convert.WireMemberInfo)
	default:
		err = typed.Errorf(mempool.ErrInvalid, "there is no list of %q: expected %s, %s, %s, %s, %s or %s", r.What, wire.ListSessions, wire.ListChannels, wire.ListNames,
			wire.ListBuffers, wire.ListLeases, wire.ListMembers)
	}
	c.answer(q, reply, err)
}

// lists makes lists wait for other requests: a client asks for a long list in many requests, and these requests could use a whole
// processor.
type lists struct {
	others atomic.Uint64 // number of requests that did not ask for a list
	mu     sync.Mutex    // held by the one request for a list that waits; other such requests wait for mu
	known  uint64        // value of `others` at the last page
}

// listRest is how long the server makes no page of a list, so that it can carry out other requests.
const listRest = time.Millisecond

// wait returns when the server may make a page of a list: at once if there were no other requests since the last page, else after
// listRest. wait does not wait until no other request is running: between two transfers of a busy client no request is running, and a list
// that began then would take the processor from the next transfer.
func (l *lists) wait(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.others.Load() != l.known {
		rest := time.NewTimer(listRest)
		defer rest.Stop()
		select {
		case <-rest.C:
		case <-ctx.Done():
		}
	}
	l.known = l.others.Load()
}

// listMemory is memory for a page of a list. The next page uses the same memory again. Otherwise each page would leave 25 KB of garbage,
// and in a service with many buffers garbage collection slows transfers down.
type listMemory struct {
	sessions []mempool.SessionInfo
	channels []mempool.ChannelInfo
	names    []mempool.NameInfo
	buffers  []mempool.BufferInfo
	leases   []mempool.LeaseInfo
	members  []mempool.MemberInfo
	reply    wire.ListReply
}

var listMemories = sync.Pool{New: func() any { return new(listMemory) }}

// free removes the entries from the memory, and keeps the memory for another page.
func (m *listMemory) free() {
	r := &m.reply
	m.sessions, m.channels, m.names = emptied(m.sessions), emptied(m.channels), emptied(m.names)
	m.buffers, m.leases, m.members = emptied(m.buffers), emptied(m.leases), emptied(m.members)
	*r = wire.ListReply{Sessions: emptied(r.Sessions), Channels: emptied(r.Channels), Names: emptied(r.Names), Buffers: emptied(r.Buffers), Leases: emptied(r.Leases),
		Members: emptied(r.Members)}
	listMemories.Put(m)
}

// emptied returns s without elements. emptied also clears the old elements, so that they do not keep other memory alive.
func emptied[T any](s []T) []T {
	clear(s)
	return s[:0]
}

// entries returns a page of a list as types of package wire, and the value of `after` for the next page. entries uses the memory of infos
// and out for the page.
func entries[T, W any](list func(after string, most int, into []T) (service.Page[T], error), after string, most int, infos *[]T, out []W,
	describe func(T) W) ([]W, string, error) {
	page, err := list(after, most, *infos)
	*infos = page.Entries
	for _, e := range page.Entries {
		out = append(out, describe(e))
	}
	return out, page.Next, err
}
