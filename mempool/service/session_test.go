package service

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestAnEndedSessionCanDoNothing(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 1<<20)
	s.End(mempool.SessionLeft, "", nil)
	ctx := context.Background()
	_, err := s.CreatePool(mempool.PoolSpec{Name: "q", Kind: fake, MaxBytes: 512})
	assert.ErrorIs(t, err, mempool.ErrClosed)
	_, err = s.OpenPool(ctx, p.rec.Info.Name, patience)
	assert.ErrorIs(t, err, mempool.ErrClosed)
	_, err = s.FindPool(p.rec.Info.ID)
	assert.ErrorIs(t, err, mempool.ErrClosed)
	_, err = s.allocate(ctx, p.rec.Info.ID, mempool.Bytes(1), patience)
	assert.ErrorIs(t, err, mempool.ErrClosed)
	_, err = s.getLease(ctx, "x", false, patience)
	assert.ErrorIs(t, err, mempool.ErrClosed)
	_, err = s.leaseOf(ctx, 1, 1, false, patience)
	assert.ErrorIs(t, err, mempool.ErrClosed)
	_, err = s.TrimPool(p.rec.Info.ID, 0)
	assert.ErrorIs(t, err, mempool.ErrClosed)
	assert.ErrorIs(t, s.DestroyPool(p.rec.Info.ID), mempool.ErrClosed)
	assert.ErrorIs(t, s.Unpublish("x"), mempool.ErrClosed)
	assert.ErrorIs(t, s.Dropped(nil), mempool.ErrClosed)
}

func TestEndingASessionWakesWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s, other := open(t, svc), open(t, svc)
		p, _ := fakePool(t, s, 1024)
		l := allocate(t, other, p, 1024)
		info := l.Grant()
		ctx := context.Background()
		waits := []func() error{
			func() error { _, err := s.OpenPool(ctx, "no such pool", patience); return err },
			func() error { _, err := s.allocate(ctx, p.rec.Info.ID, mempool.Bytes(1), patience); return err },
			func() error { _, err := s.getLease(ctx, "no such name", false, patience); return err },
			func() error { _, err := s.leaseOf(ctx, info.Buffer, info.Generation, true, patience); return err },
		}
		ended := make(chan error)
		for _, wait := range waits {
			go func() { ended <- wait() }()
		}
		synctest.Wait()
		s.End(mempool.SessionLeft, "", nil)
		for range waits {
			assert.ErrorIs(t, <-ended, mempool.ErrClosed)
		}
	})
}

func TestWhatAnEndedSessionHeldServesOthersOnlyOnceItsProcessIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s, dying := open(t, svc), openClient(t, svc, mempool.Self())
		p, backing := fakePool(t, s, 1024)
		l := allocate(t, dying.Session, p, 1024)
		block := mapBlock(t, l)
		gone := make(chan struct{})
		reclaimed := dying.End(mempool.SessionLeft, "", gone)

		st := svc.Stats()
		assert.Equal(t, []int{1, 0, 0}, []int{st.Sessions, st.Leases, st.Buffers})
		assert.EqualValues(t, 1024, st.Pools[0].Held)
		_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1), 0)
		require.ErrorIs(t, err, mempool.ErrLimit)
		require.ErrorIs(t, err, mempool.ErrRecalling, "patience helps")
		checkBooks(t, svc)

		got := make(chan Lease)
		go func() {
			l, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1024), patience)
			assert.NoError(t, err)
			got <- l
		}()
		synctest.Wait()
		select {
		case <-reclaimed:
			t.Error("reclaimed before the process is gone")
		default:
		}
		assert.Empty(t, dying.asked(), "nobody is there to answer")
		close(gone)
		again := (<-got).Grant()
		assert.Equal(t, block, again.Block, "no driver call was needed")
		assert.Equal(t, firstGeneration(svc.epoch)+1, again.Generation)
		assert.Zero(t, backing.frees)
		<-reclaimed
		checkBooks(t, svc)
	})
}

func TestABlockThatADeadSessionOnlyMappedIsUsedAgainButNotFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s, dying := open(t, svc), openClient(t, svc, mempool.Self())
		p, backing := fakePool(t, s, 1024)
		l := allocate(t, dying.Session, p, 1024)
		mapBlock(t, l)
		release(t, l)
		gone := make(chan struct{})
		reclaimed := dying.End(mempool.SessionLeft, "", gone)

		release(t, allocate(t, s, p, 1024))
		given, err := s.TrimPool(p.rec.Info.ID, 0)
		require.NoError(t, err)
		assert.Zero(t, given)
		assert.Zero(t, backing.frees, "the process may still map it")
		checkBooks(t, svc)
		close(gone)
		<-reclaimed
		assert.Equal(t, 1, backing.frees)
		checkBooks(t, svc)
	})
}

func TestABlockOfTwoDeadProcessesWaitsForBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s, a, b := open(t, svc), openClient(t, svc, mempool.Self()), openClient(t, svc, mempool.Self())
		p, _ := fakePool(t, s, 1024)
		l := allocate(t, a.Session, p, 1024)
		require.NoError(t, l.Publish(mempool.Publication{Name: "x"}))
		_, err := b.getLease(context.Background(), "x", false, 0)
		require.NoError(t, err)
		goneA, goneB := make(chan struct{}), make(chan struct{})
		settledA, settledB := a.End(mempool.SessionLeft, "", goneA), b.End(mempool.SessionLeft, "", goneB)
		close(goneB)
		<-settledB
		assert.EqualValues(t, 1024, svc.Stats().Pools[0].Held)
		close(goneA)
		<-settledA
		assert.EqualValues(t, 1024, svc.Stats().Pools[0].Cached)
		checkBooks(t, svc)
	})
}

func TestASessionWithoutAProcessIsReclaimedAtOnce(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 1024)
	allocate(t, s, p, 1024)
	<-s.End(mempool.SessionLeft, "", nil)
	<-s.End(mempool.SessionLeft, "", make(chan struct{})) // again: nothing is left to wait for
	assert.EqualValues(t, 1024, svc.Stats().Pools[0].Cached)
	assert.Zero(t, svc.Stats().Leases)
	checkBooks(t, svc)
}

func TestASessionThatHeldNothingIsReclaimedAtOnceWhateverItsProcessDoes(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	<-s.End(mempool.SessionLeft, "", make(chan struct{}))
}

func TestASessionThatEndsWhileItsBlockIsMadeLosesIt(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, backing := fakePool(t, s, 1024)
	inside, letGo := backing.block()
	failed := make(chan error)
	go func() {
		_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1024), 0)
		failed <- err
	}()
	<-inside
	s.End(mempool.SessionLeft, "", nil)
	letGo()
	assert.ErrorIs(t, <-failed, mempool.ErrClosed)
	st := svc.Stats()
	assert.EqualValues(t, 1024, st.Pools[0].Cached)
	assert.Zero(t, st.Buffers)
	checkBooks(t, svc)
}

func TestLeaseIDsOfOthersCannotBeReleased(t *testing.T) {
	svc := newService(t)
	a, b := open(t, svc), open(t, svc)
	p, _ := fakePool(t, a, 1024)
	l := allocate(t, a, p, 1)
	assert.ErrorIs(t, b.Release(false, nil, l.ID()), mempool.ErrReleased)
	assert.ErrorIs(t, b.Release(false, nil, l.ID()+1), mempool.ErrReleased)
	assert.ErrorIs(t, b.Release(false, nil, 0), mempool.ErrReleased)
	require.NoError(t, a.Release(false, nil, l.ID()))
	assert.ErrorIs(t, a.Release(false, nil, l.ID()), mempool.ErrReleased)
	assert.NotEqual(t, a.ID(), b.ID())
	assert.Equal(t, mempool.Self(), a.rec.Peer)
}
