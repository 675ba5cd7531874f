package bridge

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestMembersExchangeFramesThroughFilesFromTheSocket(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	a, b := sharing(t, r.path), sharing(t, r.path)
	pool, channel := a.makeStream(1<<16, wire.MakeChannel{Capacity: 2})
	_, found := b.findStream()
	require.Equal(t, channel, found)

	to := b.consume(wire.Join{Channel: channel})
	assert.Empty(t, b.others, "there is no producer yet")
	from := a.produce(pool, channel)
	require.Len(t, a.others, 1, "the consumer's file came before the reply to enter")
	assert.Equal(t, to.Member, a.others[0].Member)
	for range 3 { // three blocks, because the channel keeps two frames
		from.alloc(100)
	}
	for n := range uint64(10) {
		number, block := from.publish(n, shmchannel.Fence{})
		f := to.next()
		assert.Equal(t, number, f.Number)
		assert.Equal(t, block, f.Block)
		assert.Equal(t, n, to.read(f))
		require.NoError(t, to.Release(f, shmchannel.Fence{}))
		if len(from.free) == 0 {
			from.reclaim()
		}
	}
	require.Len(t, b.others, 1)
	assert.Equal(t, wire.MemberCame{Channel: channel, Role: "producer", Seat: from.Seat, Member: from.Member, Export: wire.Export{FDs: 1}},
		b.others[0].MemberCame)
}

func TestALateConsumerBeginsWithTheNewestOrTheOldestFrame(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	a, b := sharing(t, r.path), sharing(t, r.path)
	pool, channel := a.makeStream(1<<16, wire.MakeChannel{Capacity: 3})
	b.findStream()
	from := a.produce(pool, channel)
	for n := range uint64(3) {
		from.alloc(100)
		from.publish(n+1, shmchannel.Fence{})
	}
	newest, oldest := b.consume(wire.Join{Channel: channel}), b.consume(wire.Join{Channel: channel, Oldest: true})
	assert.EqualValues(t, 3, newest.read(newest.next()))
	assert.EqualValues(t, 1, oldest.read(oldest.next()))
}

func TestASessionWithMemoryIsAskedForItWhileAnotherWaits(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	a, b := sharing(t, r.path), sharing(t, r.path)
	pool, channel := a.makeStream(4096, wire.MakeChannel{Capacity: 2})
	b.findStream()
	from := a.produce(pool, channel)
	spare := from.alloc(100)
	b.Send(90, &wire.Alloc{Pool: pool, Tensor: convert.WireTensor(mempool.Bytes(10)), Wait: 3_600_000})
	for range 2 {
		assert.Equal(t, pool, await[*wire.Wanted](a).Pool)
	}
	a.Send(0, &wire.Release{Lease: spare.ID})
	require.NoError(t, b.Reply(90, &wire.GrantReply{}))
	a.denied(&wire.Alloc{Pool: pool, Tensor: convert.WireTensor(mempool.Bytes(10))}, wire.CodeLimit)
}

func TestAMappedBlockIsAskedBackAndGivenUp(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	a, b := sharing(t, r.path), sharing(t, r.path)
	pool, channel := a.makeStream(4096, wire.MakeChannel{Capacity: 1})
	b.findStream()
	from, to := a.produce(pool, channel), b.consume(wire.Join{Channel: channel})
	l := from.alloc(100)
	a.denied(&wire.Map{Channel: channel, Block: l.Block}, wire.CodeDenied)
	b.denied(&wire.Map{Channel: channel, Block: 99}, wire.CodeNotFound)
	b.denied(&wire.Map{Channel: 99, Block: l.Block}, wire.CodeClosed)
	from.publish(3, shmchannel.Fence{})
	f := to.next()
	assert.EqualValues(t, 3, to.read(f))
	assert.EqualValues(t, 3, to.read(f), "a client may ask again")
	require.NoError(t, to.Release(f, shmchannel.Fence{}))

	a.get(&wire.CloseChannel{Channel: channel}, &wire.EmptyReply{})
	require.NoError(t, to.Leave())
	b.get(&wire.Leave{Channel: channel, Member: to.Member}, &wire.EmptyReply{})
	require.Len(t, from.reclaim(), 1)
	a.get(&wire.Release{Lease: l.ID}, &wire.EmptyReply{})
	a.get(&wire.Dropped{Blocks: []uint64{l.Block}}, &wire.EmptyReply{})
	a.get(&wire.Trim{Pool: pool}, &wire.TrimReply{})
	assert.Equal(t, []uint64{l.Block}, await[*wire.Recall](b).Blocks)
	b.get(&wire.Dropped{Blocks: []uint64{l.Block}}, &wire.EmptyReply{})
	var stats wire.StatsReply
	b.get(&wire.StatsRequest{}, &stats)
	assert.Zero(t, stats.Stats.Pools[0].Reserved)
}

func TestWhatNamesAChannelOrAMemberThatIsGoneIsAnswered(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	a := sharing(t, r.path)
	pool, channel := a.makeStream(4096, wire.MakeChannel{Capacity: 1})
	from := a.produce(pool, channel)
	requests := func(member uint64) []wire.Request {
		return []wire.Request{&wire.Enter{Channel: channel, Member: member}, &wire.Leave{Channel: channel, Member: member},
			&wire.Doubt{Channel: channel, Member: member, Sequence: 1}}
	}
	for _, m := range requests(99) {
		a.denied(m, wire.CodeNotFound)
	}
	b := sharing(t, r.path)
	for _, m := range requests(from.Member) {
		b.denied(m, wire.CodeClosed)
	}
	a.denied(&wire.Join{Channel: channel, Role: "listener"}, wire.CodeInvalid)
	a.denied(&wire.Enter{Channel: channel, Member: from.Member}, wire.CodeInvalid)
	a.get(&wire.CloseChannel{Channel: channel}, &wire.EmptyReply{})
	for _, m := range append(requests(from.Member), &wire.Join{Channel: channel, Role: "producer"}, &wire.Map{Channel: channel, Block: 1}) {
		a.denied(m, wire.CodeClosed)
	}
}

func TestRequestsWithoutANumberAreCarriedOutWhereNobodyMustKnow(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	a := sharing(t, r.path)
	pool, channel := a.makeStream(8192, wire.MakeChannel{Capacity: 1})
	a.Send(0, &wire.Join{Channel: channel, Role: "producer"})
	a.Send(0, &wire.Map{Channel: channel, Block: 1})
	to := a.consume(wire.Join{Channel: channel})
	assert.Zero(t, to.Seat, "nobody else joined")
	assert.EqualValues(t, 1, to.Member)
	a.Send(0, &wire.Doubt{Channel: channel, Member: to.Member, Sequence: 77})
	require.NoError(t, to.Leave())
	a.Send(0, &wire.Leave{Channel: channel, Member: to.Member})
	a.denied(&wire.Leave{Channel: channel, Member: to.Member}, wire.CodeClosed)
	require.NotZero(t, pool)
}
