package bridge

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/wire"
)

const longWait = 3_600_000 // milliseconds

func TestTooManyRequestsThatWaitAreRefusedAndTheOthersWaitOn(t *testing.T) {
	r := start(t, ServerConfig{}, unhurried)
	c := greeted(t, r.path)
	c.ask(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 1 << 20}, &wire.PoolReply{})
	for q := range uint32(256) {
		c.send(1000+q, &wire.Get{Name: "x", Wait: longWait})
	}
	c.refused(3, &wire.Get{Name: "x", Wait: longWait}, wire.CodeLimit)
	c.refused(4, &wire.Open{Name: "q", Wait: longWait}, wire.CodeLimit)
	c.refused(5, &wire.Get{Name: "x"}, wire.CodeNotFound)

	var lease wire.LeaseReply
	c.ask(6, &wire.Alloc{Pool: 1, Tensor: wire.Tensor{DType: "uint8"}}, &lease)
	c.send(0, &wire.Publish{Lease: lease.Lease.ID, Name: "x"})
	seen := make(map[uint32]bool)
	for len(seen) < 256 {
		packet, err := c.recv()
		require.NoError(t, err)
		q, err := wire.DecodeReply(packet, &lease)
		require.NoError(t, err)
		require.False(t, seen[q])
		seen[q] = true
		require.Nil(t, lease.Lease.Export, "the session has it")
	}
	c.send(7, &wire.Get{Name: "y", Wait: longWait})
	c.ask(8, &wire.StatsRequest{}, &wire.StatsReply{})
}

func TestTheServiceHasSoManyRequestsThatWait(t *testing.T) {
	r := start(t, ServerConfig{MaxWaits: 2}, unhurried)
	a, b := greeted(t, r.path), greeted(t, r.path)
	for q := range uint32(2) {
		a.send(2+q, &wire.Get{Name: "x", Wait: longWait})
	}
	a.ask(9, &wire.StatsRequest{}, &wire.StatsReply{}) // both wait
	b.send(2, &wire.Get{Name: "x", Wait: longWait})
	err := b.reply(2, &wire.LeaseReply{})
	require.ErrorIs(t, err, wire.CodeLimit)
	assert.ErrorContains(t, err, "--limit waits=N")
	b.refused(3, &wire.Get{Name: "x"}, wire.CodeNotFound)
	a.send(0, &wire.Cancel{Request: 2})
	require.ErrorIs(t, a.reply(2, &wire.LeaseReply{}), wire.CodeCancelled)
	b.send(4, &wire.Get{Name: "x", Wait: longWait})
	b.ask(9, &wire.StatsRequest{}, &wire.StatsReply{})
	require.NoError(t, a.conn.Close())
	c := greeted(t, r.path)
	require.Eventually(t, func() bool { return r.waits.Load() == 1 }, patience, time.Millisecond, "those of a session go with it")
	c.send(2, &wire.Get{Name: "x", Wait: longWait})
	c.ask(9, &wire.StatsRequest{}, &wire.StatsReply{})
	assert.EqualValues(t, 2, r.waits.Load())
}

// A reply to the second request would be taken for one to the first.
func TestANumberThatWaitsIsUsedAgainOnlyByAClientThatBreaksTheProtocol(t *testing.T) {
	_, path := serve(t, ServerConfig{})
	for _, second := range []wire.Request{&wire.Get{Name: "x", Wait: longWait}, &wire.Open{Name: "x"}, &wire.StatsRequest{}, nil} {
		c := greeted(t, path)
		c.send(5, &wire.Get{Name: "x", Wait: longWait})
		if second != nil {
			c.send(5, second)
		} else {
			require.NoError(t, c.conn.Send([]byte("\x82\xa1o\xa4warp\xa1q\x05"), nil)) // an unknown operation
		}
		packets := c.cutOff()
		require.Len(t, packets, 1)
		n, err := wire.DecodeNotice(packets[0])
		require.NoError(t, err, "no reply")
		assert.Equal(t, wire.CodeProtocol, n.(*wire.Goodbye).Reason.Code)
	}
}

func TestANumberIsFreeOnceItsReplyCame(t *testing.T) {
	_, path := serve(t, ServerConfig{})
	c := greeted(t, path)
	c.send(5, &wire.Get{Name: "x", Wait: longWait})
	c.send(0, &wire.Cancel{Request: 5})
	assert.ErrorIs(t, c.reply(5, &wire.LeaseReply{}), wire.CodeCancelled)
	c.refused(5, &wire.Get{Name: "x"}, wire.CodeNotFound)
}

func TestOnlyTheRequestThatIsNamedIsCancelled(t *testing.T) {
	_, path := serve(t, ServerConfig{})
	c := greeted(t, path)
	const last = wire.MaxQuery
	c.send(last, &wire.Get{Name: "x", Wait: longWait})
	c.send(6, &wire.Open{Name: "x", Wait: longWait})
	for _, q := range []uint64{0, 5, last + 1, wire.MaxUint} {
		c.ask(9, &wire.Cancel{Request: q}, &wire.EmptyReply{})
	}
	c.send(0, &wire.Cancel{Request: 6})
	assert.ErrorIs(t, c.reply(6, &wire.PoolReply{}), wire.CodeCancelled)
	c.send(0, &wire.Cancel{Request: last})
	assert.ErrorIs(t, c.reply(last, &wire.LeaseReply{}), wire.CodeCancelled)
}

// A client that cancels and uses the number again at once cancels the first request only.
func TestACancelledRequestDoesNotTakeItsSuccessorAlong(t *testing.T) {
	_, path := serve(t, ServerConfig{})
	c := greeted(t, path)
	for range 100 {
		c.send(5, &wire.Get{Name: "x", Wait: longWait})
		c.send(0, &wire.Cancel{Request: 5})
		require.ErrorIs(t, c.reply(5, &wire.LeaseReply{}), wire.CodeCancelled)
		c.send(5, &wire.Get{Name: "x", Wait: longWait})
		c.ask(6, &wire.StatsRequest{}, &wire.StatsReply{})
		c.send(0, &wire.Cancel{Request: 5})
		require.ErrorIs(t, c.reply(5, &wire.LeaseReply{}), wire.CodeCancelled)
	}
}

func TestARequestThatWantsNoReplyGetsNoLease(t *testing.T) {
	r := start(t, ServerConfig{}, unhurried)
	c := greeted(t, r.path)
	c.ask(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 1 << 20}, &wire.PoolReply{})
	c.send(0, &wire.Alloc{Pool: 1, Tensor: wire.Tensor{DType: "uint8"}})
	c.send(0, &wire.Open{Name: "nothing", Wait: longWait})
	var st wire.StatsReply
	c.ask(3, &wire.StatsRequest{}, &st)
	assert.Zero(t, st.Stats.Leases)
}
