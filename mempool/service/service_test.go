package service

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestEveryEpochIsAnother(t *testing.T) {
	a, b := newService(t), newService(t)
	assert.NotEqual(t, a.Epoch(), b.Epoch())
	assert.Len(t, a.Epoch().String(), 32)
}

func TestCloseWhileEverythingIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s, c, dead := open(t, svc), openClient(t, svc, mempool.Self()), openClient(t, svc, mempool.Self())
		p, backing := fakePool(t, s, 4096)
		doomed := createPool(t, s, mempool.PoolSpec{Name: "doomed", Kind: fake, MaxBytes: 4096})
		ctx := context.Background()
		l := allocate(t, s, p, 512)
		mapBlock(t, allocate(t, c.Session, p, 512))
		publish(t, allocate(t, c.Session, p, 512), mempool.Publication{Name: "kept", Keep: true})
		mapBlock(t, allocate(t, c.Session, doomed, 512))
		mapBlock(t, allocate(t, dead.Session, p, 512))
		dead.End(mempool.SessionLeft, "", make(chan struct{})) // the session's process lives on for ever
		require.NoError(t, s.DestroyPool(doomed.rec.Info.ID))

		failed := make(chan error)
		go func() { _, err := s.getLease(ctx, "nothing", false, patience); failed <- err }()
		go func() { _, err := c.OpenPool(ctx, "nothing", patience); failed <- err }()
		go func() { _, err := c.allocate(ctx, p.rec.Info.ID, mempool.Bytes(4096), patience); failed <- err }()
		synctest.Wait()
		inside, letGo := backing.block()
		go func() { _, err := s.allocate(ctx, p.rec.Info.ID, mempool.Bytes(1024), 0); failed <- err }()
		<-inside // a call of the driver is under way

		var closing sync.WaitGroup
		for range 2 { // the second one waits for the first
			closing.Go(func() {
				svc.Close()
				assert.True(t, backing.closed)
			})
		}
		for range 3 {
			assert.ErrorIs(t, <-failed, mempool.ErrClosed)
		}
		synctest.Wait()
		assert.False(t, backing.closed, "the driver is still at work")
		letGo()
		assert.ErrorIs(t, <-failed, mempool.ErrClosed)
		closing.Wait()
		<-doomed.closed
		assert.Zero(t, backing.used)
		assert.Zero(t, svc.Stats().Leases)
		assert.Empty(t, svc.Stats().Pools)
		assert.Zero(t, svc.ledger.Buffers.Len())
		assert.ErrorIs(t, l.Release(false), mempool.ErrReleased)
	})
}

func TestNothingBeginsInAClosedService(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	svc.Close()
	_, err := svc.OpenSession(mempool.Self(), "", nil)
	assert.ErrorIs(t, err, mempool.ErrClosed)
	_, err = s.CreatePool(mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 512})
	assert.ErrorIs(t, err, mempool.ErrClosed)
}

func TestAPoolThatIsMadeWhileTheServiceClosesGoesWithIt(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	spec := mempool.PoolSpec{Name: t.Name(), Kind: fake, MaxBytes: 512}
	gate := holdUp(t, spec.Name)
	failed, closed := make(chan error), make(chan struct{})
	go func() {
		_, err := s.CreatePool(spec)
		failed <- err
	}()
	<-gate.inside
	_, err := s.CreatePool(spec)
	assert.ErrorIs(t, err, mempool.ErrExists, "its name is taken")
	opened := make(chan error)
	go func() {
		_, err := s.OpenPool(context.Background(), spec.Name, 0)
		opened <- err
	}()
	go func() { svc.Close(); close(closed) }()
	<-svc.closing
	assert.ErrorIs(t, <-opened, mempool.ErrClosed)
	gate.outcome <- nil
	assert.ErrorIs(t, <-failed, mempool.ErrClosed)
	<-closed
	assert.EqualValues(t, 1, svc.Counts().DriverCalls["close"])
	checkBooks(t, svc)
}
