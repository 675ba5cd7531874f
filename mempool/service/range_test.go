package service

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func rangeOf(t testing.TB, of Lease, base, n uint64) Lease {
	t.Helper()
	g, err := of.session.AllocateRange(of.ID(), base, mempool.Bytes(n))
	require.NoError(t, err)
	return g.Lease
}

func returned(t testing.TB, of Lease, ranges ...Lease) (gone []bool, wait []mempool.Fence) {
	t.Helper()
	var ids []uint64
	for _, l := range ranges {
		ids = append(ids, l.Grant().Buffer)
	}
	found, wait, err := of.session.Returned(of.ID(), ids)
	require.NoError(t, err)
	for _, id := range ids {
		gone = append(gone, len(found) > 0 && found[0] == id)
		if gone[len(gone)-1] {
			found = found[1:]
		}
	}
	return gone, wait
}

func TestARangeIsABufferInTheSameBlockAndTakesNoMemory(t *testing.T) {
	svc := newService(t)
	s, other := open(t, svc), open(t, svc)
	p, _ := fakePool(t, s, 4096)
	whole := allocate(t, s, p, 2048)
	before := svc.Stats().Pools
	a, b := rangeOf(t, whole, 0, 100), rangeOf(t, whole, 50, 1998)
	assert.Equal(t, before, svc.Stats().Pools, "memory counts once, and ranges may overlap")
	assert.Equal(t, mempool.Grant{ID: b.ID(), Buffer: 3, Generation: whole.Grant().Generation, Write: true, Pool: 1, Block: whole.Grant().Block, BlockBytes: 2048, Bytes: 1998,
		Base: 50, Tensor: mempool.Bytes(1998)}, b.Grant())
	publish(t, a, mempool.Publication{Name: "a"})
	release(t, a)
	got, err := other.getLease(context.Background(), "a", false, 0)
	require.NoError(t, err)
	page, err := other.View().Buffers("", 64, nil)
	require.NoError(t, err)
	assert.Equal(t, []uint64{0, 1, 1}, []uint64{page.Entries[0].Whole, page.Entries[1].Whole, page.Entries[2].Whole})
	checkBooks(t, svc)
	checkFile(t, svc)
	release(t, got)
	release(t, b)
	require.NoError(t, s.Unpublish("a"))
	release(t, whole)
	assert.Zero(t, svc.Stats().Pools[0].Leased)
	checkBooks(t, svc)
}

func TestABlockIsInUseUntilTheWholeAndAllItsRangesAreGone(t *testing.T) {
	for name, ends := range map[string]func(s *Session, whole Lease){
		"the program released it": func(_ *Session, whole Lease) { _ = whole.Release(false) },
		"its session ended":       func(s *Session, _ Lease) { s.End(mempool.SessionLost, "", nil) },
	} {
		t.Run(name, func(t *testing.T) {
			svc := newService(t)
			s, other := open(t, svc), open(t, svc)
			p, _ := fakePool(t, s, 2048)
			whole := allocate(t, s, p, 2048)
			a, b := rangeOf(t, whole, 0, 100), rangeOf(t, whole, 512, 100)
			publish(t, a, mempool.Publication{Name: "a", WhileUsed: true})
			publish(t, b, mempool.Publication{Name: "b", Keep: true})
			got, err := other.getLease(context.Background(), "a", false, 0)
			require.NoError(t, err)
			ends(s, whole)
			checkBooks(t, svc)
			checkFile(t, svc)
			require.NoError(t, other.Unpublish("b"))
			_ = b.Release(false)
			_ = a.Release(false)
			assert.EqualValues(t, 2048, svc.Stats().Pools[0].Leased, "one reader is left")
			_, err = other.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1), 0)
			require.ErrorIs(t, err, mempool.ErrLimit)
			release(t, got)
			assert.Zero(t, svc.Stats().Pools[0].Leased)
			assert.Zero(t, svc.Stats().Names)
			checkBooks(t, svc)
		})
	}
}

func TestOnlyAWriteLeaseOfItsOwnSessionIsDividedAndOnlyInside(t *testing.T) {
	svc := newService(t)
	s, other := open(t, svc), open(t, svc)
	p, _ := fakePool(t, s, 1<<20)
	whole := allocate(t, s, p, 1000)
	refused := func(of *Session, lease, base uint64, tensor mempool.Tensor) error {
		_, err := of.AllocateRange(lease, base, tensor)
		require.Error(t, err)
		return err
	}
	for _, one := range []struct{ base, n uint64 }{{1, 1000}, {1001, 0}, {math.MaxUint64, 1}, {math.MaxUint64 - 999, 1000}, {0, 1001}} {
		assert.ErrorIs(t, refused(s, whole.ID(), one.base, mempool.Bytes(one.n)), mempool.ErrInvalid, "%v", one)
	}
	assert.ErrorIs(t, refused(s, whole.ID(), 0, mempool.Tensor{DType: mempool.Uint8, Shape: []uint64{1 << 40, 1 << 40}}), mempool.ErrInvalid)
	assert.Equal(t, refused(other, 77, 0, mempool.Bytes(1)).Error(), replaced(refused(other, whole.ID(), 0, mempool.Bytes(1)).Error(), whole.ID(), 77),
		"another session's lease is like none")
	part := rangeOf(t, whole, 1000, 0)
	assert.ErrorIs(t, refused(s, part.ID(), 0, mempool.Bytes(0)), mempool.ErrInvalid, "a range of a range")
	read := allocate(t, s, p, 10)
	publish(t, read, mempool.Publication{Name: "x"})
	assert.ErrorIs(t, refused(s, read.ID(), 0, mempool.Bytes(1)), mempool.ErrInvalid)
	_, _, err := s.Returned(read.ID(), []uint64{1})
	assert.ErrorIs(t, err, mempool.ErrInvalid)
	_, _, err = other.Returned(whole.ID(), []uint64{part.Grant().Buffer})
	assert.ErrorIs(t, err, mempool.ErrReleased)
	gone, _, err := s.Returned(whole.ID(), []uint64{part.Grant().Buffer, read.Grant().Buffer, 99})
	require.NoError(t, err)
	assert.Equal(t, []uint64{read.Grant().Buffer, 99}, gone, "what is no range of the lease is gone, whether it is there or not")
	require.NoError(t, s.DestroyPool(p.rec.Info.ID))
	assert.ErrorIs(t, refused(s, whole.ID(), 0, mempool.Bytes(1)), mempool.ErrClosed)
	checkBooks(t, svc)
}

func replaced(text string, id, by uint64) string {
	return strings.ReplaceAll(text, fmt.Sprint(" ", id, ":"), fmt.Sprint(" ", by, ":"))
}

func TestRangesCountAsBuffersAndLeases(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 4096)
	whole := allocate(t, s, p, 100)
	svc.mu.Lock()
	svc.ledger.Limits.Buffers = 2
	svc.mu.Unlock()
	rangeOf(t, whole, 0, 1)
	_, err := s.AllocateRange(whole.ID(), 0, mempool.Bytes(1))
	assert.ErrorIs(t, err, mempool.ErrLimit)
	checkBooks(t, svc)
}

func TestNobodyWritesTheWholeWhileItHasRanges(t *testing.T) {
	svc := newService(t)
	s, other := open(t, svc), open(t, svc)
	p, _ := fakePool(t, s, 4096)
	whole := allocate(t, s, p, 100)
	part := rangeOf(t, whole, 10, 10)
	publish(t, whole, mempool.Publication{Name: "whole"})
	release(t, whole)
	_, err := other.getLease(context.Background(), "whole", true, 0)
	require.ErrorIs(t, err, mempool.ErrBusy)
	got := make(chan error)
	go func() {
		_, err := other.getLease(context.Background(), "whole", true, time.Minute)
		got <- err
	}()
	require.Eventually(t, func() bool {
		svc.mu.Lock()
		defer svc.mu.Unlock()
		return len(svc.changed) > 0
	}, time.Minute, time.Millisecond)
	release(t, part)
	require.NoError(t, <-got)
	checkBooks(t, svc)
}

func TestTheWriterOfAnArenaWaitsForTheReadersWorkOnReturnedRangesAlone(t *testing.T) {
	svc := newService(t)
	w, r := hire(t, svc), hire(t, svc)
	p, _ := fakePool(t, w.Session, 4096)
	whole := allocate(t, w.Session, p, 2048)
	a, b := rangeOf(t, whole, 0, 100), rangeOf(t, whole, 512, 100)
	for name, l := range map[string]Lease{"a": a, "b": b} {
		publish(t, l, mempool.Publication{Name: name})
	}
	fence := r.fence()
	got, err := r.getLease(context.Background(), "a", false, 0)
	require.NoError(t, err)
	require.NoError(t, got.ReleaseAt(false, []mempool.Fence{fence}))
	release(t, a)
	release(t, b)
	gone, wait := returned(t, whole, a, b)
	assert.Equal(t, []bool{false, false}, gone, "their names hold them")
	assert.Empty(t, wait)
	require.NoError(t, w.Unpublish("a"))
	gone, wait = returned(t, whole, a, b)
	assert.Equal(t, []bool{true, false}, gone)
	assert.Equal(t, []mempool.Fence{fence}, wait)
	assert.Empty(t, rangeOf(t, whole, 0, 100).Grant().Wait, "the session that asks for a range has used the memory")
	checkBooks(t, svc)
	r.reach(fence)
	_, wait = returned(t, whole, a, b)
	assert.Empty(t, wait)
	assert.Empty(t, whole.rec.Wait, "the lease does not wait for what is over")
	checkBooks(t, svc)
}

func TestAProducerThatLeavesKeepsItsArenaAndTheChannelItsRanges(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 4)
	w := hire(t, r.svc)
	p, c := r.produce(w), r.consume(hire(t, r.svc), MemberSpec{})
	whole := allocate(t, w.Session, r.pool, 512)
	part := rangeOf(t, whole, 100, 10)
	p.publish(part, mempool.Fence{})
	f := c.next()
	p.leave()
	require.ErrorIs(t, w.Release(false, nil, part.ID()), mempool.ErrReleased, "its frame is in hand")
	release(t, rangeOf(t, whole, 200, 10))
	gone, _ := returned(t, whole, part)
	assert.Equal(t, []bool{false}, gone)
	require.NoError(t, w.Release(false, nil, whole.ID()))
	end, _ := p.end()
	end()
	assert.Equal(t, 1, r.kept())
	checkBooks(t, r.svc)
	c.done(f, mempool.Fence{})
	require.NoError(t, r.owner.Channel(r.info.ID).Close())
	c.quit()
	r.awaitStands(0, 0)
	checkBooks(t, r.svc)
}

func TestNobodyElseWritesARangeBecauseAnotherMayOverlapIt(t *testing.T) {
	svc := newService(t)
	s, other := open(t, svc), open(t, svc)
	p, _ := fakePool(t, s, 4096)
	whole := allocate(t, s, p, 2048)
	a, b := rangeOf(t, whole, 0, 100), rangeOf(t, whole, 0, 100)
	publish(t, a, mempool.Publication{Name: "a"})
	publish(t, b, mempool.Publication{Name: "b"})
	release(t, a)
	release(t, b)
	for _, name := range []string{"a", "b"} {
		_, err := other.getLease(context.Background(), name, true, time.Minute)
		require.ErrorIs(t, err, mempool.ErrInvalid)
		require.ErrorContains(t, err, "which only the arena's program writes")
		got, err := other.getLease(context.Background(), name, false, 0)
		require.NoError(t, err)
		defer release(t, got)
	}
}
