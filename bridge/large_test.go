package bridge

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// largeFrom makes every allocation of n bytes or more a large one.
func largeFrom(n uint64) limits {
	l := unhurried
	l.large, l.working = n, time.Millisecond
	return l
}

// Waiting for room stands for taking long: nothing else lasts as long as a test wants it to.
func TestAClientIsToldThatALargeAllocationIsUnderWay(t *testing.T) {
	r := start(t, ServerConfig{}, largeFrom(8192))
	c := greeted(t, r.path)
	c.ask(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 8192}, &wire.PoolReply{})
	tensor := wire.Tensor{DType: "uint8", Shape: []uint64{8192}}
	var first wire.LeaseReply
	c.ask(3, &wire.Alloc{Pool: 1, Tensor: tensor}, &first)
	c.send(70000, &wire.Alloc{Pool: 1, Tensor: tensor, Wait: longWait})
	for range 3 {
		packet, err := c.recv()
		require.NoError(t, err)
		n, err := wire.DecodeNotice(packet)
		require.NoError(t, err)
		assert.Equal(t, &wire.Working{Request: 70000}, n)
	}
	c.ask(4, &wire.StatsRequest{}, &wire.StatsReply{}) // it holds up nobody, its own session included
	c.send(0, &wire.Release{Lease: first.Lease.ID})
	var second wire.LeaseReply
	require.NoError(t, c.reply(70000, &second))
	assert.Equal(t, first.Lease.Block, second.Lease.Block)
	c.send(5, &wire.Alloc{Pool: 1, Tensor: tensor, Wait: longWait})
	c.send(0, &wire.Cancel{Request: 5})
	assert.ErrorIs(t, c.reply(5, &wire.LeaseReply{}), wire.CodeCancelled)
	c.refused(6, &wire.Alloc{Pool: 1, Tensor: tensor}, wire.CodeLimit)
	c.refused(7, &wire.Alloc{Pool: 9, Tensor: tensor}, wire.CodeNotFound)
}

func TestAClientIsToldThatARequestIsUnderWayThatOthersWaitBehind(t *testing.T) {
	goOn := make(chan struct{})
	svc := service.New(service.Config{MayCreate: func(mempool.Peer) bool { <-goOn; return true }})
	t.Cleanup(svc.Close)
	path := filepath.Join(t.TempDir(), "run", "s")
	server, err := listen(path, svc, ServerConfig{}, largeFrom(1))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })
	c := greeted(t, path)
	c.send(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 4096})
	c.send(3, &wire.StatsRequest{})
	for range 3 {
		packet, err := c.recv()
		require.NoError(t, err)
		n, err := wire.DecodeNotice(packet)
		require.NoError(t, err)
		assert.Equal(t, &wire.Working{}, n)
	}
	close(goOn)
	require.NoError(t, c.reply(2, &wire.PoolReply{}))
	require.NoError(t, c.reply(3, &wire.StatsReply{}))
}

func TestAClientOfGoMakesLargeAllocations(t *testing.T) {
	r := start(t, ServerConfig{}, largeFrom(1))
	c := dial(t, r.path)
	p := createPool(t, c, hostPool("p", 8192))
	l := allocate(t, p, 8192)
	got := make(chan *Lease)
	go func() {
		l, err := p.Allocate(context.Background(), l.Info().Tensor, patience)
		assert.NoError(t, err)
		got <- l
	}()
	require.NoError(t, l.Release(false))
	require.NoError(t, (<-got).Release(false))
}

// ticks returns once the server has said n times that an allocation of c's is under way, which c reads.
func ticks(t *testing.T, c *raw, n int) {
	t.Helper()
	c.send(90, &wire.Alloc{Pool: 1, Tensor: bytesTensor(8192), Wait: longWait})
	for range n {
		packet, err := c.recv()
		require.NoError(t, err)
		n, err := wire.DecodeNotice(packet)
		require.NoError(t, err)
		require.Equal(t, &wire.Working{Request: 90}, n)
	}
	c.send(0, &wire.Cancel{Request: 90})
	require.ErrorIs(t, c.reply(90, &wire.LeaseReply{}), wire.CodeCancelled)
}

func TestAClientThatReadsNothingDuringALargeAllocationIsNotCutOff(t *testing.T) {
	l := largeFrom(8192)
	l.send, l.working = 10*time.Millisecond, 100*time.Microsecond
	for name, fill := range map[string]bool{"that has a full socket": true, "that is told for long": false} {
		t.Run(name, func(t *testing.T) {
			r := start(t, ServerConfig{}, l)
			stopped := greeted(t, r.path)
			server := r.only(t)
			stopped.ask(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 8192}, &wire.PoolReply{})
			other := greeted(t, r.path)
			other.ask(2, &wire.Open{Name: "p"}, &wire.PoolReply{})
			var held wire.LeaseReply
			other.ask(3, &wire.Alloc{Pool: 1, Tensor: bytesTensor(8192)}, &held)
			stopped.send(3, &wire.Alloc{Pool: 1, Tensor: bytesTensor(8192), Wait: longWait})
			filled := 0
			if fill {
				eventually(t, func() bool { return server.waits(3) })
				filled = stopped.stall(server, 0)
			}
			ticks(t, other, 400) // a socket has room for fewer
			require.NoError(t, server.ctx.Err())
			for range filled { // it goes on
				_, err := stopped.recv()
				require.NoError(t, err)
			}
			other.ask(4, &wire.Release{Lease: held.Lease.ID}, &wire.EmptyReply{})
			require.NoError(t, stopped.reply(3, &wire.LeaseReply{}), "there is room for the answer")
		})
	}
}
