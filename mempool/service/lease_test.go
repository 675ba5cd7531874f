package service

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestIDsAreNeverReusedAndGenerationsCount(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 1024)
	first := allocate(t, s, p, 1024)
	a := first.Grant()
	release(t, first)
	second := allocate(t, s, p, 1024)
	b := second.Grant()
	assert.Equal(t, a.Block, b.Block)
	assert.Equal(t, a.Generation+1, b.Generation)
	assert.Greater(t, b.Buffer, a.Buffer)
	assert.Greater(t, b.ID, a.ID)
	release(t, second)
	_, err := s.TrimPool(p.rec.Info.ID, 0)
	require.NoError(t, err)
	c := allocate(t, s, p, 1024).Grant()
	assert.Greater(t, c.Block, b.Block, "the block is another one")
	assert.Equal(t, a.Generation, c.Generation)

	ctx := context.Background()
	_, err = s.leaseOf(ctx, a.Buffer, a.Generation, false, 0)
	assert.ErrorIs(t, err, mempool.ErrStale)
	_, err = s.leaseOf(ctx, c.Buffer, c.Generation+1, false, 0)
	assert.ErrorIs(t, err, mempool.ErrStale)
	_, err = s.leaseOf(ctx, c.Buffer+1, 1, false, 0)
	assert.ErrorIs(t, err, mempool.ErrStale)
	_, err = s.leaseOf(ctx, 0, 0, false, 0)
	assert.ErrorIs(t, err, mempool.ErrStale)
}

func TestALeaseEndsOnce(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 1024)
	l := allocate(t, s, p, 100)
	release(t, l)
	assert.ErrorIs(t, l.Release(false), mempool.ErrReleased)
	assert.ErrorIs(t, l.Publish(mempool.Publication{Name: "x"}), mempool.ErrReleased)
	_, _, err := l.Export()
	assert.ErrorIs(t, err, mempool.ErrReleased)
	assert.EqualValues(t, 100, l.Grant().Bytes, "what it was can still be told")
	checkBooks(t, svc)
}

func TestTheExportIsGivenOnceToEachSession(t *testing.T) {
	svc := newService(t)
	a, b := openClient(t, svc, mempool.Self()), openClient(t, svc, mempool.Self())
	p, _ := fakePool(t, a.Session, 1024)
	l := allocate(t, a.Session, p, 10)
	x, first, err := l.Export()
	require.NoError(t, err)
	assert.True(t, first)
	assert.NotEmpty(t, x.Data)
	_, first, _ = l.Export()
	assert.False(t, first)
	block := l.Grant().Block
	require.NoError(t, l.Publish(mempool.Publication{Name: "x"}))
	r, err := b.getLease(context.Background(), "x", false, 0)
	require.NoError(t, err)
	_, first, _ = r.Export()
	assert.True(t, first, "another session")

	assert.ErrorIs(t, a.Dropped([]uint64{block}), mempool.ErrBusy)
	release(t, l)
	require.NoError(t, a.Dropped([]uint64{block, block, 77}))
	l, err = a.getLease(context.Background(), "x", false, 0)
	require.NoError(t, err)
	_, first, _ = l.Export()
	assert.True(t, first, "it had dropped the block")
}

func TestOneRefusalInADroppedListKeepsAllOfIt(t *testing.T) {
	svc := newService(t)
	c := openClient(t, svc, mempool.Self())
	p, _ := fakePool(t, c.Session, 4096)
	idle, busy := allocate(t, c.Session, p, 512), allocate(t, c.Session, p, 512)
	ids := []uint64{mapBlock(t, idle), mapBlock(t, busy)}
	release(t, idle)
	assert.ErrorIs(t, c.Dropped(ids), mempool.ErrBusy)
	_, err := c.TrimPool(p.rec.Info.ID, 0)
	require.NoError(t, err)
	assert.Equal(t, ids[:1], c.asked(), "it counts as mapped still")
}

func TestAGrantThatIsUndoneIsNotLeftMapped(t *testing.T) {
	svc := newService(t)
	c := openClient(t, svc, mempool.Self())
	p, _ := fakePool(t, c.Session, 512)
	g, err := c.Allocate(t.Context(), p.rec.Info.ID, mempool.Bytes(10), 0, 0)
	require.NoError(t, err)
	assert.False(t, g.Mapped)
	_, first, err := g.Lease.Export()
	require.NoError(t, err)
	require.NoError(t, g.Lease.Undo(first))
	assert.ErrorIs(t, g.Lease.Undo(false), mempool.ErrReleased)
	assert.Empty(t, c.rec.Mapped)
	assert.Zero(t, svc.Stats().Leases)

	again, err := c.Allocate(t.Context(), p.rec.Info.ID, mempool.Bytes(10), 0, 0)
	require.NoError(t, err)
	require.Equal(t, g.Grant.Block, again.Grant.Block)
	assert.False(t, again.Mapped, "its session has yet to be sent the export")
	mapBlock(t, again.Lease)
	require.NoError(t, again.Lease.Undo(false))
	last, err := c.Allocate(t.Context(), p.rec.Info.ID, mempool.Bytes(10), 0, 0)
	require.NoError(t, err)
	assert.True(t, last.Mapped)
	checkBooks(t, svc)
}
