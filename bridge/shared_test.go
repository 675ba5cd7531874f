package bridge

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestMembersExchangeFramesThroughFilesFromTheSocket(t *testing.T) {
	r := start(t, ServerConfig{}, unhurried)
	a, b := sharing(t, r.path), sharing(t, r.path)
	pool, channel := a.makeShared(1<<16, wire.MakeChannel{Capacity: 2})
	_, found := b.findShared()
	require.Equal(t, channel, found)

	to := b.consume(wire.Join{Channel: channel})
	assert.Empty(t, b.others, "there is no producer yet")
	from := a.produce(pool, channel)
	require.Len(t, a.others, 1, "the consumer's file came before the reply to enter")
	assert.Equal(t, to.Member, a.others[0].Member.Member)
	for range 3 { // two are kept
		from.alloc(100)
	}
	for n := range uint64(10) {
		number, block := from.publish(n, shmchannel.Ticket{})
		f := to.next()
		assert.Equal(t, number, f.Number)
		assert.Equal(t, block, f.Block)
		assert.Equal(t, n, to.read(f))
		require.NoError(t, to.Release(f, shmchannel.Ticket{}))
		if len(from.free) == 0 {
			from.reclaim()
		}
	}
	require.Len(t, b.others, 1)
	assert.Equal(t, wire.Member{Channel: channel, Role: "producer", Slot: from.Slot, Member: from.Member, Export: wire.Export{FDs: 1}},
		b.others[0].Member)
}

func TestALateConsumerBeginsWithTheNewestOrTheOldestFrame(t *testing.T) {
	r := start(t, ServerConfig{}, unhurried)
	a, b := sharing(t, r.path), sharing(t, r.path)
	pool, channel := a.makeShared(1<<16, wire.MakeChannel{Capacity: 3})
	b.findShared()
	from := a.produce(pool, channel)
	for n := range uint64(3) {
		from.alloc(100)
		from.publish(n+1, shmchannel.Ticket{})
	}
	newest, oldest := b.consume(wire.Join{Channel: channel}), b.consume(wire.Join{Channel: channel, Oldest: true})
	assert.EqualValues(t, 3, newest.read(newest.next()))
	assert.EqualValues(t, 1, oldest.read(oldest.next()))
}

func TestASessionWithoutTheFeatureMeetsNoSharedChannel(t *testing.T) {
	r := start(t, ServerConfig{}, unhurried)
	a := sharing(t, r.path)
	pool, channel := a.makeShared(1<<16, wire.MakeChannel{Capacity: 3})
	old, _ := streaming(t, r.path)
	old.refused(10, &wire.MakeChannel{Name: "d", Pool: pool, Capacity: 3, Shared: true}, wire.CodeUnsupported)
	old.refused(11, &wire.Find{Name: "c"}, wire.CodeUnsupported)
	for i, m := range []wire.Request{&wire.Join{Channel: channel, Role: "consumer"}, &wire.Enter{Channel: channel, Member: 1},
		&wire.Leave{Channel: channel, Member: 1}, &wire.Map{Channel: channel, Block: 1}, &wire.Doubt{Channel: channel, Member: 1, Sequence: 1}} {
		old.refused(uint32(20+i), m, wire.CodeUnsupported)
	}
	old.refused(30, &wire.MakeChannel{Name: "c", Pool: pool, Capacity: 3}, wire.CodeExists)
	old.refused(31, &wire.Subscribe{Channel: channel, Credit: 1}, wire.CodeInvalid)
	var l wire.LeaseReply
	old.ask(32, &wire.Alloc{Pool: pool, Tensor: wireTensor(mempool.Bytes(10))}, &l)
	old.refused(33, &wire.Send{Channel: channel, Lease: l.Lease.ID}, wire.CodeInvalid)
}
