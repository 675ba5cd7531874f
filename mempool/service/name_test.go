package service

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func publish(t testing.TB, l Lease, p mempool.Publication) {
	t.Helper()
	require.NoError(t, l.Publish(p))
}

func TestOnlyAWriteLeaseIsPublished(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 4096)
	l := allocate(t, s, p, 8)
	assert.ErrorIs(t, l.Publish(mempool.Publication{Name: "bad\n"}), mempool.ErrInvalid)
	large := mempool.Bytes(9)
	assert.ErrorIs(t, l.Publish(mempool.Publication{Name: "x", Tensor: &large}), mempool.ErrInvalid)
	broken := mempool.Tensor{DType: "?"}
	assert.ErrorIs(t, l.Publish(mempool.Publication{Name: "x", Tensor: &broken}), mempool.ErrInvalid)
	anew := mempool.Tensor{DType: mempool.Int32, Shape: []uint64{2}}
	publish(t, l, mempool.Publication{Name: "x", Tensor: &anew})
	assert.Equal(t, anew, l.Grant().Tensor)
	assert.False(t, l.Grant().Write)
	assert.ErrorIs(t, l.Publish(mempool.Publication{Name: "y"}), mempool.ErrInvalid, "a read lease now")
	assert.Equal(t, 1, svc.Stats().Names)
}

func TestATakenNameIsReplacedOnlyOnDemand(t *testing.T) {
	svc := newService(t)
	a, b := open(t, svc), open(t, svc)
	p, _ := fakePool(t, a, 4096)
	first, second := allocate(t, a, p, 1), allocate(t, b, p, 2)
	publish(t, first, mempool.Publication{Name: "x"})
	release(t, first)
	assert.ErrorIs(t, second.Publish(mempool.Publication{Name: "x"}), mempool.ErrExists)
	publish(t, second, mempool.Publication{Name: "x", Replace: true})
	release(t, second)
	assert.Equal(t, 1, svc.Stats().Buffers, "nothing holds the first any more")
	a.End(mempool.SessionLeft, "", nil) // the name belongs to another session by now
	l, err := b.getLease(context.Background(), "x", false, 0)
	require.NoError(t, err)
	assert.EqualValues(t, 2, l.Grant().Bytes)
	checkBooks(t, svc)
}

func TestABufferIsPublishedAgainUnderItsOwnName(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 4096)
	l := allocate(t, s, p, 1)
	publish(t, l, mempool.Publication{Name: "x"})
	release(t, l)
	for _, keep := range []bool{true, false} {
		w, err := s.getLease(context.Background(), "x", true, 0)
		require.NoError(t, err)
		publish(t, w, mempool.Publication{Name: "x", Keep: keep})
		release(t, w)
	}
	assert.Equal(t, mempool.ServiceStats{Sessions: 1, Buffers: 1, Names: 1}, func() mempool.ServiceStats { st := svc.Stats(); st.Pools = nil; return st }())
	s.End(mempool.SessionLeft, "", nil)
	assert.Zero(t, svc.Stats().Names, "the last publication did not keep it")
	checkBooks(t, svc)
}

func TestABufferRemembersItsNewestPublication(t *testing.T) {
	s := newSuccession(t)
	one, err := s.svc.OpenSession(mempool.Self(), "one", func(Notice) {})
	require.NoError(t, err)
	p := createPool(t, one, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 20})
	of := func(s *Session) (said []any) {
		for _, b := range all(t, 9, s.View().Buffers) {
			said = append(said, b.Name, b.Version, b.Published)
		}
		return said
	}
	old := allocate(t, one, p, 1)
	assert.Equal(t, []any{"", uint64(0), false}, of(one))
	publish(t, old, mempool.Publication{Name: "model", Version: 3})
	assert.Equal(t, []any{"model", uint64(3), true}, of(one))
	publish(t, allocate(t, one, p, 1), mempool.Publication{Name: "model", Replace: true})
	replaced := []any{"model", uint64(3), false, "model", uint64(4), true}
	assert.Equal(t, replaced, of(one))
	checkBooks(t, s.svc)
	require.NoError(t, s.takeOver())
	again := s.resume(one)
	assert.Equal(t, replaced, of(again), "also after a takeover")
	require.NoError(t, again.Unpublish("model"))
	assert.Equal(t, []any{"model", uint64(3), false, "model", uint64(4), false}, of(again))
	blocks := s.svc.Overview(9).Maps[0].Blocks
	assert.Equal(t, []any{"model", uint64(3), false}, []any{blocks[0].Name, blocks[0].Version, blocks[0].Published})
}

func TestOfSeveralNamesABufferRemembersTheNewest(t *testing.T) {
	s := open(t, newService(t))
	p, _ := fakePool(t, s, 4096)
	l := allocate(t, s, p, 1)
	for _, name := range []string{"x", "y"} {
		publish(t, l, mempool.Publication{Name: name, Keep: true})
		require.NoError(t, l.Release(false))
		next, err := s.getLease(context.Background(), name, true, 0)
		require.NoError(t, err)
		l = next
		b := all(t, 9, s.View().Buffers)[0]
		assert.Equal(t, []any{name, uint64(1), true}, []any{b.Name, b.Version, b.Published})
	}
}

func TestABufferLivesAsLongAsAnyOfItsNames(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 4096)
	l := allocate(t, s, p, 1)
	publish(t, l, mempool.Publication{Name: "x"})
	release(t, l)
	w, err := s.getLease(context.Background(), "x", true, 0)
	require.NoError(t, err)
	publish(t, w, mempool.Publication{Name: "y"})
	release(t, w)
	require.NoError(t, s.Unpublish("x"))
	assert.Equal(t, 1, svc.Stats().Buffers)
	require.NoError(t, s.Unpublish("y"))
	assert.Zero(t, svc.Stats().Buffers)
	assert.ErrorIs(t, s.Unpublish("y"), mempool.ErrNotFound)
}

func TestANameGoesWithItsSessionUnlessItIsKept(t *testing.T) {
	svc := newService(t)
	s, other := open(t, svc), open(t, svc)
	p, _ := fakePool(t, s, 4096)
	publish(t, allocate(t, s, p, 1), mempool.Publication{Name: "gone"})
	publish(t, allocate(t, s, p, 1), mempool.Publication{Name: "kept", Keep: true})
	reader, err := other.getLease(context.Background(), "gone", false, 0)
	require.NoError(t, err)
	s.End(mempool.SessionLeft, "", nil)
	_, err = other.getLease(context.Background(), "gone", false, 0)
	assert.ErrorIs(t, err, mempool.ErrNotFound)
	assert.NoError(t, memory(reader).CopyTo(make([]byte, 1), 0), "leases on it live on")
	l, err := other.getLease(context.Background(), "kept", true, 0)
	require.NoError(t, err)
	release(t, l)
	require.NoError(t, other.Unpublish("kept"), "the same user")
	release(t, reader)
	assert.Zero(t, svc.Stats().Buffers)
	checkBooks(t, svc)
}

func TestANameEndsWithTheLastLeaseOfABufferThatIsKeptWhileItIsUsed(t *testing.T) {
	svc := newService(t)
	a, b := open(t, svc), open(t, svc)
	p, _ := fakePool(t, a, 4096)
	l := allocate(t, a, p, 1)
	publish(t, l, mempool.Publication{Name: "x", WhileUsed: true})
	reader, err := b.getLease(context.Background(), "x", false, 0)
	require.NoError(t, err)
	a.End(mempool.SessionLeft, "", nil)
	again, err := b.getLease(context.Background(), "x", false, 0)
	require.NoError(t, err, "the session that published it is gone, and a reader has it")
	release(t, reader)
	checkBooks(t, svc)
	release(t, again)
	_, err = b.getLease(context.Background(), "x", false, 0)
	require.ErrorIs(t, err, mempool.ErrNotFound)
	assert.Zero(t, svc.Stats().Buffers)
	checkBooks(t, svc)
}

func TestTheNewestPublicationDecidesWhetherANameIsKept(t *testing.T) {
	svc := newService(t)
	maker := open(t, svc)
	p, _ := fakePool(t, maker, 4096)
	for _, first := range []bool{true, false} {
		s, next := open(t, svc), open(t, svc)
		publish(t, allocate(t, s, p, 1), mempool.Publication{Name: "x", Keep: first})
		publish(t, allocate(t, next, p, 1), mempool.Publication{Name: "x", Keep: !first, Replace: true})
		s.End(mempool.SessionLeft, "", nil)
		next.End(mempool.SessionLeft, "", nil)
		_, err := maker.getLease(context.Background(), "x", false, 0)
		if first {
			require.ErrorIs(t, err, mempool.ErrNotFound)
		} else {
			require.NoError(t, err)
		}
	}
	checkBooks(t, svc)
}

func TestANameOfAnotherUserCannotBeTaken(t *testing.T) {
	svc := newService(t)
	self := mempool.Self()
	s := open(t, svc)
	p := createPool(t, s, mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 4096, Access: mempool.Access{UIDs: []uint32{self.UID, self.UID + 1}}})
	other := openClient(t, svc, mempool.Peer{UID: self.UID + 1})
	publish(t, allocate(t, s, p, 1), mempool.Publication{Name: "x"})
	l := allocate(t, other.Session, p, 1)
	assert.ErrorIs(t, l.Publish(mempool.Publication{Name: "x", Replace: true}), mempool.ErrDenied)
	assert.ErrorIs(t, other.Unpublish("x"), mempool.ErrDenied)
	_, err := other.getLease(context.Background(), "x", false, 0)
	assert.NoError(t, err, "reading is for who may use the pool")
	assert.True(t, l.Grant().Write, "a refused lease is what it was")
	checkBooks(t, svc)
}

func TestGetWaitsForTheName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		p, _ := fakePool(t, s, 4096)
		ctx := context.Background()
		_, err := s.getLease(ctx, "x", false, 0)
		assert.ErrorIs(t, err, mempool.ErrNotFound)
		began := time.Now()
		_, err = s.getLease(ctx, "x", false, time.Second)
		assert.ErrorIs(t, err, mempool.ErrTimeout)
		assert.Equal(t, time.Second, time.Since(began))
		_, err = s.getLease(ctx, "", false, 0)
		assert.ErrorIs(t, err, mempool.ErrInvalid)

		got := make(chan Lease)
		go func() {
			l, err := s.getLease(ctx, "x", false, patience)
			assert.NoError(t, err)
			got <- l
		}()
		synctest.Wait()
		publish(t, allocate(t, s, p, 1), mempool.Publication{Name: "another"})
		synctest.Wait()
		publish(t, allocate(t, s, p, 1), mempool.Publication{Name: "x"})
		release(t, <-got)
	})
}

func TestNothingIsPublishedFromAPoolThatIsBeingDestroyed(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 4096)
	l := allocate(t, s, p, 1)
	require.NoError(t, s.DestroyPool(p.rec.Info.ID))
	assert.ErrorIs(t, l.Publish(mempool.Publication{Name: "x"}), mempool.ErrClosed)
	assert.Zero(t, svc.Stats().Names)
}

// A session publishes a name, and the pool of the named buffer is destroyed, which removes the name. Then another session publishes the
// same name. When the first session ends, the name of the other session must stay.
func TestTheEndOfASessionLeavesTheNamesOfOthersAlone(t *testing.T) {
	svc := newService(t)
	s, other := open(t, svc), open(t, svc)
	p, _ := fakePool(t, s, 4096)
	q := createPool(t, s, mempool.PoolSpec{Name: "q", Kind: fake, MaxBytes: 4096})
	publish(t, allocate(t, s, p, 1), mempool.Publication{Name: "x"})
	require.NoError(t, s.DestroyPool(p.rec.Info.ID))
	publish(t, allocate(t, other, q, 1), mempool.Publication{Name: "x"})
	s.End(mempool.SessionLeft, "", nil)
	_, err := other.getLease(context.Background(), "x", false, 0)
	assert.NoError(t, err)
}

func TestAPublicationWakesOnlyThoseWhoWaitForItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		p, _ := fakePool(t, s, 4096)
		came := make(chan error)
		for range 2 {
			go func() {
				_, err := s.getLease(t.Context(), "x", false, time.Hour)
				came <- err
			}()
		}
		synctest.Wait()
		sleep := svc.awaited.all["x"].ch
		publish(t, allocate(t, s, p, 8), mempool.Publication{Name: "y"})
		assert.Equal(t, sleep, svc.awaited.all["x"].ch, "they sleep on")
		publish(t, allocate(t, s, p, 8), mempool.Publication{Name: "x"})
		require.NoError(t, <-came)
		require.NoError(t, <-came)
		synctest.Wait()
		assert.Empty(t, svc.awaited.all)

		_, err := s.getLease(t.Context(), "never", false, time.Millisecond)
		require.ErrorIs(t, err, mempool.ErrTimeout)
		_, err = s.getLease(t.Context(), "never", false, 0)
		require.ErrorIs(t, err, mempool.ErrNotFound)
		assert.Empty(t, svc.awaited.all, "a wait that is over leaves nothing")
	})
}
