package bridge

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
)

func newArena(t testing.TB, pool *Pool, n uint64) *Arena {
	t.Helper()
	a, err := pool.Arena(t.Context(), n)
	require.NoError(t, err)
	return a
}

func partOf(t testing.TB, a *Arena, n uint64, fill byte) (*Part, []byte) {
	t.Helper()
	p, err := a.Allocate(t.Context(), n)
	require.NoError(t, err)
	b, err := p.Bytes(t.Context())
	require.NoError(t, err)
	for i := range b {
		b[i] = fill
	}
	return p, b
}

func rangeOf(t testing.TB, p *Part, tensor Tensor) *Lease {
	t.Helper()
	l, err := p.Lease(t.Context(), tensor)
	require.NoError(t, err)
	return l
}

func TestAPartOfAnArenaIsPublishedWithoutACopy(t *testing.T) {
	svc, path := serve(t, server.Config{})
	c, other := dial(t, path), dial(t, path)
	a := newArena(t, createPool(t, c, hostPool("p", 1<<20)), 4096)
	partOf(t, a, 100, 1)
	p, mine := partOf(t, a, 1000, 2)
	l := rangeOf(t, p, Tensor{DType: Int32, Shape: []uint64{10}})
	assert.EqualValues(t, 512, l.Grant().Base)
	publish(t, l, "x")
	got, err := other.TryGet(t.Context(), "x", LeaseOptions{})
	require.NoError(t, err)
	b, err := got.Bytes(t.Context())
	require.NoError(t, err)
	require.Len(t, b, 40)
	mine[39] = 77
	assert.Equal(t, []byte{2, 77}, []byte{b[0], b[39]})
	read := make([]byte, 2)
	require.NoError(t, got.CopyTo(t.Context(), read, 38))
	assert.Equal(t, []byte{2, 77}, read)
	assert.EqualValues(t, 4096, svc.Stats().Pools[0].Reserved)
	require.NoError(t, p.Free())
	_, err = p.Lease(t.Context(), Tensor{DType: Uint8})
	assert.ErrorIs(t, err, ErrReleased)
	release(t, got)
	release(t, l)
	require.NoError(t, a.Close())
	_, err = a.Allocate(t.Context(), 1)
	assert.ErrorIs(t, err, ErrReleased)
}

func TestAFrameOfAPartComesFromItsPlaceInTheBlock(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, other := dial(t, path), dial(t, path)
	pool := createPool(t, c, hostPool("p", 1<<20))
	ch, err := c.CreateChannel(t.Context(), ChannelSpec{Name: "c", Pool: pool.Info().ID, Capacity: 4})
	require.NoError(t, err)
	s, err := other.Subscribe(t.Context(), "c", SubscribeOptions{})
	require.NoError(t, err)
	a := newArena(t, pool, 4096)
	for fill := range byte(3) {
		p, _ := partOf(t, a, 600, fill)
		_, err := ch.Publish(t.Context(), rangeOf(t, p, Tensor{DType: Uint8, Shape: []uint64{600}}), FrameOptions{})
		require.NoError(t, err)
		require.NoError(t, p.Free())
	}
	fill := byte(0)
	for f, err := range s.Frames(t.Context()) {
		require.NoError(t, err)
		b, err := f.Lease.Bytes(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []byte{fill, fill}, []byte{b[0], b[599]})
		require.NoError(t, f.Release())
		if fill++; fill == 3 {
			break
		}
	}
	s.Close()
}

func TestAnArenaUsesPartsAgainWhenTheirReadersAreDoneAndGrowsOtherwise(t *testing.T) {
	svc, path := serve(t, server.Config{})
	c, other := dial(t, path), dial(t, path)
	pool := createPool(t, c, hostPool("p", 1<<20))
	a := newArena(t, pool, 1024)
	reserved := func() uint64 { return svc.Stats().Pools[0].Leased }
	p, _ := partOf(t, a, 1024, 1)
	l := rangeOf(t, p, Tensor{DType: Uint8, Shape: []uint64{1024}})
	publish(t, l, "x")
	release(t, l)
	got, err := other.TryGet(t.Context(), "x", LeaseOptions{})
	require.NoError(t, err)
	require.NoError(t, c.Unpublish(t.Context(), "x"))
	require.NoError(t, p.Free())
	require.NoError(t, p.Free())
	further, _ := partOf(t, a, 1000, 2)
	block := reserved() / 2
	require.EqualValues(t, reserved(), 2*block, "a reader has the first part")
	release(t, got)
	eventually(t, func() bool { return svc.Stats().Leases == 2 })
	again, _ := partOf(t, a, 1024, 3)
	assert.Equal(t, 2*block, reserved())
	require.NoError(t, further.Free())
	eventually(t, func() bool { return reserved() == block })
	require.NoError(t, again.Free())
	for range 3 { // side by side, and joined when they are free
		x, _ := partOf(t, a, 1, 4)
		y, _ := partOf(t, a, 1, 5)
		require.NoError(t, x.Free())
		require.NoError(t, y.Free())
	}
	whole, _ := partOf(t, a, 1024, 6)
	assert.Equal(t, block, reserved())
	require.NoError(t, whole.Free())
}

func TestAnArenaGivesBlocksBackWhenAnotherProgramWantsTheMemory(t *testing.T) {
	svc, path := serve(t, server.Config{})
	c, other := dial(t, path), dial(t, path)
	pool := createPool(t, c, hostPool("p", 2*4096))
	a := newArena(t, pool, 4096)
	first, _ := partOf(t, a, 4096, 1)
	second, _ := partOf(t, a, 4096, 2)
	l := rangeOf(t, second, Tensor{DType: Uint8, Shape: []uint64{10}})
	release(t, l)
	require.NoError(t, second.Free())
	require.EqualValues(t, 2*4096, svc.Stats().Pools[0].Leased, "the arena does not know that the range is gone")
	opened, err := other.OpenPool(t.Context(), "p")
	require.NoError(t, err)
	theirs, err := opened.Allocate(t.Context(), Tensor{DType: Uint8, Shape: []uint64{4096}})
	require.NoError(t, err)
	release(t, theirs)
	require.NoError(t, first.Free())
	require.NoError(t, a.Close())
}

func TestAnArenaRefusesWhatDoesNotFit(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	pool := createPool(t, c, hostPool("p", 1<<16))
	_, err := pool.Arena(timedOut(t), 1<<20)
	assert.ErrorIs(t, err, ErrLimit)
	a := newArena(t, pool, 1<<15)
	p, _ := partOf(t, a, 512, 1)
	_, err = p.Lease(t.Context(), Tensor{DType: Uint8, Shape: []uint64{513}})
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = p.Lease(t.Context(), Tensor{DType: "?"})
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = a.Allocate(timedOut(t), 1<<20)
	assert.ErrorIs(t, err, ErrLimit)
	require.NoError(t, c.Close())
	_, err = p.Lease(t.Context(), Tensor{DType: Uint8})
	assert.Error(t, err)
}

func timedOut(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestAnArenaThatFillsItsPoolWaitsForItsOwnParts(t *testing.T) {
	asked := make(chan struct{}, 1)
	_, path := serve(t, server.Config{Answered: func(operation, _ string, _ time.Duration) {
		if operation == "returned" {
			select {
			case asked <- struct{}{}:
			default:
			}
		}
	}})
	c := dial(t, path)
	a := newArena(t, createPool(t, c, hostPool("p", 4096)), 4096)
	p, _ := partOf(t, a, 4096, 1)
	l := rangeOf(t, p, Tensor{DType: Uint8, Shape: []uint64{4096}})
	require.NoError(t, p.Free())
	limited, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	made := make(chan error, 1)
	go func() {
		_, err := a.Allocate(limited, 4096)
		made <- err
	}()
	<-asked // the first time, nothing has come back
	release(t, l)
	require.NoError(t, <-made)
}

func TestAnArenaOfMoreBytesThanANumberHasIsRefused(t *testing.T) {
	_, path := serve(t, server.Config{})
	pool := createPool(t, dial(t, path), hostPool("p", 1<<20))
	a := newArena(t, pool, 4096)
	for n := range uint64(600) {
		_, err := a.Allocate(t.Context(), math.MaxUint64-n)
		require.Error(t, err)
	}
	_, err := pool.Arena(t.Context(), math.MaxUint64)
	require.Error(t, err)
}
