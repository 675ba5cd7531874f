package server

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// largeFrom returns limits with which every allocation of n bytes or more counts as large.
func largeFrom(n uint64) ClientLimits {
	l := unhurried
	l.Large, l.Working = n, time.Millisecond
	return l
}

// In this test, an allocation that waits for room stands for an allocation that takes long, because the test can decide when the wait ends.
func TestAClientIsToldThatALargeAllocationIsUnderWay(t *testing.T) {
	r := start(t, Config{}, largeFrom(8192))
	c := greeted(t, r.path)
	c.Ask(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 8192}, &wire.PoolReply{})
	tensor := wire.Tensor{DType: "uint8", Shape: []uint64{8192}}
	var first wire.GrantReply
	c.Ask(3, &wire.Alloc{Pool: 1, Tensor: tensor}, &first)
	c.Send(70000, &wire.Alloc{Pool: 1, Tensor: tensor, Wait: longWait})
	for range 3 {
		packet, err := c.Recv()
		require.NoError(t, err)
		n, err := wire.DecodeNotice(packet)
		require.NoError(t, err)
		assert.Equal(t, &wire.Working{Request: 70000}, n)
	}
	c.Ask(4, &wire.StatsRequest{}, &wire.StatsReply{}) // other requests of the same session are answered meanwhile
	c.Send(0, &wire.Release{Lease: first.Grant.ID})
	var second wire.GrantReply
	require.NoError(t, c.Reply(70000, &second))
	assert.Equal(t, first.Grant.Block, second.Grant.Block)
	c.Send(5, &wire.Alloc{Pool: 1, Tensor: tensor, Wait: longWait})
	c.Send(0, &wire.Cancel{Request: 5})
	assert.ErrorIs(t, c.Reply(5, &wire.GrantReply{}), wire.CodeCancelled)
	c.Refused(6, &wire.Alloc{Pool: 1, Tensor: tensor}, wire.CodeLimit)
	c.Refused(7, &wire.Alloc{Pool: 9, Tensor: tensor}, wire.CodeNotFound)
}

func TestAClientIsToldThatARequestIsUnderWayThatOthersWaitBehind(t *testing.T) {
	goOn := make(chan struct{})
	svc := service.New(service.Config{MayCreate: func(mempool.Peer) bool { <-goOn; return true }})
	t.Cleanup(svc.Close)
	path := filepath.Join(t.TempDir(), "run", "s")
	limits := largeFrom(1)
	server, err := Listen(path, svc, Config{Limits: &limits})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })
	c := greeted(t, path)
	c.Send(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 4096})
	c.Send(3, &wire.StatsRequest{})
	for range 3 {
		packet, err := c.Recv()
		require.NoError(t, err)
		n, err := wire.DecodeNotice(packet)
		require.NoError(t, err)
		assert.Equal(t, &wire.Working{}, n)
	}
	close(goOn)
	require.NoError(t, c.Reply(2, &wire.PoolReply{}))
	require.NoError(t, c.Reply(3, &wire.StatsReply{}))
}

func TestAClientOfGoMakesLargeAllocations(t *testing.T) {
	r := start(t, Config{}, largeFrom(1))
	c := dial(t, r.path)
	p := createPool(t, c, hostPool("p", 8192))
	l := allocate(t, p, 8192)
	got := make(chan *bridge.Lease)
	go func() {
		l, err := p.Allocate(context.Background(), l.Grant().Tensor)
		assert.NoError(t, err)
		got <- l
	}()
	require.NoError(t, l.Release(false))
	require.NoError(t, (<-got).Release(false))
}

// ticks reads n notices that say that an allocation of c still runs, and then returns.
func ticks(t *testing.T, c *raw, n int) {
	t.Helper()
	c.Send(90, &wire.Alloc{Pool: 1, Tensor: bytesTensor(8192), Wait: longWait})
	for range n {
		packet, err := c.Recv()
		require.NoError(t, err)
		n, err := wire.DecodeNotice(packet)
		require.NoError(t, err)
		require.Equal(t, &wire.Working{Request: 90}, n)
	}
	c.Send(0, &wire.Cancel{Request: 90})
	require.ErrorIs(t, c.Reply(90, &wire.GrantReply{}), wire.CodeCancelled)
}

func TestAClientThatReadsNothingDuringALargeAllocationIsNotCutOff(t *testing.T) {
	l := largeFrom(8192)
	l.Send, l.Working = 10*time.Millisecond, 100*time.Microsecond
	for name, fill := range map[string]bool{"that has a full socket": true, "that is told for long": false} {
		t.Run(name, func(t *testing.T) {
			r := start(t, Config{}, l)
			stopped := greeted(t, r.path)
			server := r.only(t)
			stopped.Ask(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 8192}, &wire.PoolReply{})
			other := greeted(t, r.path)
			other.Ask(2, &wire.Open{Name: "p"}, &wire.PoolReply{})
			var held wire.GrantReply
			other.Ask(3, &wire.Alloc{Pool: 1, Tensor: bytesTensor(8192)}, &held)
			stopped.Send(3, &wire.Alloc{Pool: 1, Tensor: bytesTensor(8192), Wait: longWait})
			filled := 0
			if fill {
				eventually(t, func() bool { return server.waits.has(3) })
				filled = stall(stopped, server, 0)
			}
			ticks(t, other, 400) // 400 notices do not fit into a socket's buffer
			require.NoError(t, server.ctx.Err())
			for range filled { // the stopped client reads its notices again
				_, err := stopped.Recv()
				require.NoError(t, err)
			}
			other.Ask(4, &wire.Release{Lease: held.Grant.ID}, &wire.EmptyReply{})
			require.NoError(t, stopped.Reply(3, &wire.GrantReply{}), "there is room for the answer")
		})
	}
}
