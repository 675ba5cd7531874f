package server

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
	"github.com/poolbridge/poolbridge/tests/harness"
)

// as connects a client that counts as a client of another user: the kernel would report this process's user.
func (r *rig) as(t *testing.T, uid uint32) *raw {
	t.Helper()
	path := filepath.Join(filepath.Dir(r.path), "as")
	l, err := seqpacket.Listen(path, seqpacket.ListenConfig{})
	require.NoError(t, err)
	client := dialRaw(t, path)
	conn, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, l.Close())
	c, ended := r.newConn(conn), make(chan struct{})
	c.peer = mempool.Peer{UID: uid, GID: uid, PID: 1}
	go func() {
		defer close(ended)
		_ = c.run(c.peer)
		c.cancel(nil)
		c.work.Wait()
		c.session.End(mempool.SessionLeft, "", nil)
		_ = conn.Close()
	}()
	t.Cleanup(func() {
		_ = client.Conn.Close()
		<-ended
	})
	client.Ask(1, &wire.Hello{Versions: []uint64{1}, Features: []string{wire.FeatureTimelines, wire.FeatureChannels, wire.FeatureRanges}}, &wire.HelloReply{})
	client.Ask(2, &wire.GetTimeline{}, &wire.TimelineReply{})
	client.Ask(3, &wire.Seal{}, &wire.EmptyReply{})
	return client
}

const (
	owner, neighbour, passerby = 1001, 1002, 1003
)

// startFor starts a service in which the user `owner` may make pools.
func startFor(t *testing.T) *rig {
	limits := unhurried
	limits.Working = patience // a notice between two answers would be none about hidden things
	r := &rig{path: harness.SocketPath(t), svc: service.New(service.Config{MayCreate: func(p mempool.Peer) bool { return p.UID == owner }})}
	var err error
	r.Server, err = Listen(r.path, r.svc, Config{Limits: &limits})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = r.Close()
		r.svc.Close()
	})
	return r
}

// hidden has, for each operation, requests about things that the user may not see: things with the id `id`, and with the names that hide
// gives. A new operation needs an entry here.
var hidden = map[string]func(id uint64) []wire.Request{
	"create": func(uint64) []wire.Request {
		spec := wire.Create{Name: "payroll", Kind: "host", MaxBytes: 1 << 20}
		like := spec
		like.Ensure = true
		return []wire.Request{&spec, &like}
	},
	"open": func(id uint64) []wire.Request {
		return []wire.Request{&wire.Open{Pool: id}, &wire.Open{Name: "payroll"}, &wire.Open{Name: "payroll", Wait: 1}}
	},
	"destroy": func(id uint64) []wire.Request { return []wire.Request{&wire.Destroy{Pool: id}} },
	"trim":    func(id uint64) []wire.Request { return []wire.Request{&wire.Trim{Pool: id}} },
	"alloc": func(id uint64) []wire.Request {
		return []wire.Request{&wire.Alloc{Pool: id, Tensor: bytesTensor(8)}, &wire.Alloc{Pool: id, Tensor: bytesTensor(8), Wait: 1},
			&wire.Alloc{Pool: id, Tensor: bytesTensor(1 << 30)}}
	},
	"publish": func(id uint64) []wire.Request {
		return []wire.Request{&wire.Publish{Lease: id, Name: "salaries"}, &wire.Publish{Lease: id, Name: "salaries", Replace: true}}
	},
	"unpublish": func(uint64) []wire.Request { return []wire.Request{&wire.Unpublish{Name: "salaries"}} },
	"get": func(uint64) []wire.Request {
		return []wire.Request{&wire.Get{Name: "salaries"}, &wire.Get{Name: "salaries", Wait: 1}, &wire.Get{Name: "salaries", Write: true}}
	},
	"lease": func(id uint64) []wire.Request {
		return []wire.Request{&wire.LeaseBuffer{Buffer: id, Generation: 1}, &wire.LeaseBuffer{Buffer: id, Generation: 2},
			&wire.LeaseBuffer{Buffer: id, Generation: 1, Wait: 1}, &wire.LeaseBuffer{Buffer: id, Generation: 1, Write: true}}
	},
	"release": func(id uint64) []wire.Request {
		return []wire.Request{&wire.Release{Lease: id}, &wire.Release{Lease: id, Done: []wire.Fence{{Timeline: id, Value: 1}}}}
	},
	"range": func(id uint64) []wire.Request {
		return []wire.Request{&wire.AllocRange{Lease: id, Tensor: bytesTensor(1)}}
	},
	"returned": func(id uint64) []wire.Request {
		return []wire.Request{&wire.Returned{Lease: id, Buffers: []uint64{id}}, &wire.Returned{Lease: ownThings, Buffers: []uint64{id}}}
	},
	"cancel":  func(id uint64) []wire.Request { return []wire.Request{&wire.Cancel{Request: id}} },
	"dropped": func(id uint64) []wire.Request { return []wire.Request{&wire.Dropped{Blocks: []uint64{id}}} },
	"stats":   func(uint64) []wire.Request { return []wire.Request{&wire.StatsRequest{}} },
	"list": func(id uint64) (all []wire.Request) {
		for _, what := range []string{wire.ListSessions, wire.ListChannels, wire.ListNames, wire.ListBuffers, wire.ListLeases} {
			all = append(all, &wire.List{What: what}, &wire.List{What: what, After: "1", Most: id})
		}
		return append(all, &wire.List{What: wire.ListMembers, Channel: id})
	},
	"events": func(uint64) []wire.Request { return []wire.Request{&wire.Events{}, &wire.Events{Wait: 1}} },
	"end":    func(id uint64) []wire.Request { return []wire.Request{&wire.EndSession{Session: id}} },
	"bye":    func(uint64) []wire.Request { return []wire.Request{&wire.Bye{}} },
	"timeline": func(id uint64) []wire.Request {
		return []wire.Request{&wire.GetTimeline{Timeline: id}}
	},
	"seal": func(uint64) []wire.Request { return []wire.Request{&wire.Seal{}} },
	"channel": func(id uint64) []wire.Request {
		return []wire.Request{&wire.MakeChannel{Name: "wages", Pool: id, Capacity: 2}, &wire.MakeChannel{Name: "other", Pool: id, Capacity: 2}}
	},
	"find": func(uint64) []wire.Request {
		return []wire.Request{&wire.Find{Name: "wages"}, &wire.Find{Name: "wages", Wait: 1}}
	},
	"close": func(id uint64) []wire.Request {
		return []wire.Request{&wire.CloseChannel{Channel: id}, &wire.CloseChannel{Channel: id, Discard: true}}
	},
	"consumers": func(id uint64) []wire.Request {
		return []wire.Request{&wire.AwaitConsumers{Channel: id, Count: 1}, &wire.AwaitConsumers{Channel: id, Count: 1, Wait: 1}, &wire.AwaitConsumers{Channel: id}}
	},
	"join": func(id uint64) []wire.Request {
		return []wire.Request{&wire.Join{Channel: id, Role: "producer"}, &wire.Join{Channel: id, Role: "consumer"}, &wire.Join{Channel: id, Role: "listener"},
			&wire.Join{Name: "wages", Role: "consumer"}, &wire.Join{Name: "wages", Wait: 1, Role: "consumer"}, &wire.Join{Name: "wages", Channel: id, Role: "consumer"}}
	},
	"enter": func(id uint64) []wire.Request {
		return []wire.Request{&wire.Enter{Channel: id, Member: 1}, &wire.Enter{Channel: id, Member: 99}}
	},
	"leave": func(id uint64) []wire.Request {
		return []wire.Request{&wire.Leave{Channel: id, Member: 1}, &wire.Leave{Channel: id, Member: 99}}
	},
	"map": func(id uint64) []wire.Request {
		return []wire.Request{&wire.Map{Channel: id, Block: id}, &wire.Map{Channel: id, Block: 99}}
	},
	"doubt": func(id uint64) []wire.Request {
		return []wire.Request{&wire.Doubt{Channel: id, Member: 1}, &wire.Doubt{Channel: id, Member: 99}}
	},
}

// ownThings is the greatest id of the things that the neighbour sees; idsAsked is the greatest id that the requests ask for.
const ownThings, idsAsked = 1, 8

// answers sends the requests of an operation and returns the packets that came back.
func answers(c *raw, operation string) (all [][]byte) {
	q := uint32(100)
	for id := uint64(ownThings + 1); id <= idsAsked; id++ {
		for _, request := range hidden[operation](id) {
			q++
			c.Send(q, request)
			packet, err := c.Recv()
			require.NoError(c, err)
			h, err := wire.DecodeHeader(packet)
			require.NoError(c, err)
			require.Equal(c, q, h.Q, "the service says something about hidden things: %q", packet)
			if operation == "events" { // its cursor counts all events of the service
				reply := wire.EventsReply{}
				require.NoError(c, h.DecodeReply(&reply))
				packet, err = wire.AppendReply(nil, q, &wire.EventsReply{Events: reply.Events})
				require.NoError(c, err)
			}
			all = append(all, slices.Clone(packet))
		}
	}
	return all
}

// own makes a pool that the neighbour may use, with one buffer and one channel of the neighbour. Their ids are ownThings.
func own(maker, near *raw) {
	maker.Ask(4, &wire.Create{Name: "own", Kind: "host", MaxBytes: 1 << 20, UIDs: []uint64{neighbour}}, &wire.PoolReply{})
	near.Ask(4, &wire.Alloc{Pool: 1, Tensor: bytesTensor(8)}, &wire.GrantReply{})
	near.Ask(5, &wire.MakeChannel{Name: "own", Pool: 1, Capacity: 2}, &wire.ChannelReply{})
}

// hide makes things of every kind that the users neighbour and passerby may not see.
func hide(c *raw) {
	var pool wire.PoolReply
	c.Ask(10, &wire.Create{Name: "payroll", Kind: "host", MaxBytes: 1 << 20}, &pool)
	var named, written, framed wire.GrantReply
	for _, l := range []*wire.GrantReply{&named, &written, &framed} {
		c.Ask(11, &wire.Alloc{Pool: pool.Pool.ID, Tensor: bytesTensor(8)}, l)
	}
	c.Ask(12, &wire.Publish{Lease: named.Grant.ID, Name: "salaries", Keep: true}, &wire.EmptyReply{})
	var channel wire.ChannelReply
	c.Ask(13, &wire.MakeChannel{Name: "wages", Pool: pool.Pool.ID, Capacity: 2}, &channel)
	for _, role := range []string{"producer", "consumer"} {
		var member wire.JoinReply
		c.Ask(14, &wire.Join{Channel: channel.Channel.ID, Role: role}, &member)
		c.Ask(15, &wire.Enter{Channel: channel.Channel.ID, Member: member.Member}, &wire.EmptyReply{})
	}
	for _, id := range []uint64{pool.Pool.ID, named.Grant.ID, named.Grant.Buffer, named.Grant.Block, channel.Channel.ID} {
		require.Greater(c, id, uint64(ownThings), "it would be another thing than the requests ask for")
		require.LessOrEqual(c, id, uint64(idsAsked))
	}
}

func TestAStrangerGetsTheSameAnswersWhetherHiddenThingsExistOrNot(t *testing.T) {
	for name := range operations {
		require.NotNil(t, hidden[name], "%s: add requests about hidden things", name)
	}
	r := startFor(t)
	near, far, maker := r.as(t, neighbour), r.as(t, passerby), r.as(t, owner)
	own(maker, near)
	everything := func() (all map[string][][]byte) {
		all = make(map[string][][]byte)
		for who, c := range map[string]*raw{"a user of another pool: ": near, "a user of no pool: ": far} {
			for name := range operations {
				all[who+name] = answers(c, name)
			}
		}
		return all
	}
	same := func(want map[string][][]byte, when string) {
		for name, got := range everything() {
			for i := range got {
				assert.Equal(t, string(want[name][i]), string(got[i]), "%s, when they %s", name, when)
			}
		}
	}
	never := everything()
	hide(maker)
	same(never, "exist")
	maker.Ask(20, &wire.Destroy{Pool: 2}, &wire.EmptyReply{})
	same(never, "are gone")
}

func TestATakenNameSaysNothingElse(t *testing.T) {
	r := startFor(t)
	near, maker := r.as(t, neighbour), r.as(t, owner)
	own(maker, near)
	hide(maker)
	for want, request := range map[string]wire.Request{
		`already exists: the buffer name "salaries" is taken: choose another name`: &wire.Publish{Lease: ownThings, Name: "salaries", Replace: true},
		`already exists: the channel name "wages" is taken: choose another name`:   &wire.MakeChannel{Name: "wages", Pool: 1, Capacity: 2},
	} {
		near.Send(5, request)
		err := near.Reply(5, &wire.EmptyReply{})
		require.ErrorIs(t, err, wire.CodeExists)
		assert.ErrorContains(t, err, want)
	}
}

func TestAUserHasOnlyItsShareOfTheSessions(t *testing.T) {
	svc := service.New(service.Config{Limits: service.Limits{UserSessions: 300}})
	defer svc.Close()
	s, err := Listen(harness.SocketPath(t), svc, Config{MaxSessions: 512})
	require.NoError(t, err)
	defer s.Close()
	admit := func(uid uint32) (*connection, error) {
		c := &connection{server: s, peer: mempool.Peer{UID: uid}}
		err := s.admit(c)
		if err == nil {
			s.accepted.Done() // no goroutine serves it
		}
		return c, err
	}
	full := func(uid uint32, limit string) {
		_, err := admit(uid)
		over, ok := errors.AsType[*service.LimitError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, limit, over.Limit)
	}
	var last *connection
	for range 300 {
		last, err = admit(neighbour)
		require.NoError(t, err)
	}
	full(neighbour, "user-sessions")
	s.lingers(last)
	full(neighbour, "user-sessions")
	s.reclaimed(last)
	_, err = admit(neighbour)
	require.NoError(t, err)
	for range 512 - 300 - 2 {
		_, err = admit(passerby)
		require.NoError(t, err)
	}
	full(passerby, "sessions")
	for range 2 {
		_, err = admit(mempool.Self().UID)
		require.NoError(t, err, "some sessions are only for the service's own user")
	}
	full(mempool.Self().UID, "sessions")
}
