package service

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

var errDriver = typed.Errorf(mempool.ErrInternal, "the driver is in a bad mood")

func TestAnAllocationThatTheDriverRefusesLeavesNoTrace(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, backing := fakePool(t, s, 1024)
	for _, why := range []error{errDriver, typed.Errorf(mempool.ErrOutOfMemory, "none left")} {
		backing.set("Allocate", why)
		_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1024), 0)
		assert.ErrorIs(t, err, errors.Unwrap(why))
		assert.Equal(t, mempool.PoolStats{Pool: p.rec.Info}, svc.Stats().Pools[0])
		checkBooks(t, svc)
	}
	backing.set("Allocate", nil)
	allocate(t, s, p, 1024)
}

func TestADestroyedPoolWhoseLastAllocationFailsIsClosed(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, backing := fakePool(t, s, 1024)
	inside, letGo := backing.block()
	backing.set("Allocate", errDriver)
	failed := make(chan error)
	go func() {
		_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1), 0)
		failed <- err
	}()
	<-inside
	require.NoError(t, s.DestroyPool(p.rec.Info.ID))
	letGo()
	assert.ErrorIs(t, <-failed, mempool.ErrInternal)
	<-p.closed
}

func TestOutOfMemoryGivesUpWhatLiesIdle(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	// After the releases of a and b, the pool cannot grow, and its free memory is two blocks of one page. The service must free both blocks
	// to make a block of two pages.
	p := createPool(t, s, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 3 * 4096})
	a, b, c := allocate(t, s, p, 4096), allocate(t, s, p, 4096), allocate(t, s, p, 4096)
	release(t, a)
	release(t, b)
	allocate(t, s, p, 8192)
	checkBooks(t, svc)
	release(t, c)
}

func TestOutOfMemoryWaitsForWhatIsBeingAskedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s, c := open(t, svc), openClient(t, svc, mempool.Self())
		p, backing := fakePool(t, s, 4096)
		l := allocate(t, c.Session, p, 512)
		block := mapBlock(t, l)
		release(t, l)
		backing.set("Allocate", typed.Errorf(mempool.ErrOutOfMemory, "none left"))
		_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1024), 0)
		require.ErrorIs(t, err, mempool.ErrOutOfMemory)
		require.ErrorIs(t, err, mempool.ErrRecalling)
		got := make(chan Lease)
		for range 2 { // an allocation that fails must not wake the other one again and again
			go func() {
				l, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1024), patience)
				assert.NoError(t, err)
				got <- l
			}()
		}
		synctest.Wait()
		assert.Equal(t, []uint64{block}, c.asked())
		backing.set("Allocate", nil)
		require.NoError(t, c.Dropped([]uint64{block}))
		release(t, <-got)
		release(t, <-got)
		checkBooks(t, svc)
	})
}

func TestAnExportThatFailsIsTriedAgain(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, backing := fakePool(t, s, 1024)
	l := allocate(t, s, p, 1)
	backing.set("Export", errDriver)
	_, _, err := l.Export()
	require.ErrorIs(t, err, mempool.ErrInternal)
	backing.set("Export", nil)
	_, first, err := l.Export()
	require.NoError(t, err)
	assert.True(t, first, "the session did not get it the first time")
}

func TestABlockThatCannotBeFreedStaysCountedAndIsTriedAgain(t *testing.T) {
	var log bytes.Buffer
	svc := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	defer svc.Close()
	s := open(t, svc)
	p, backing := fakePool(t, s, 1024)
	release(t, allocate(t, s, p, 1024))
	backing.set("Free", errDriver)
	n, err := s.TrimPool(p.rec.Info.ID, 0)
	assert.ErrorIs(t, err, mempool.ErrInternal)
	assert.Zero(t, n)
	st := svc.Stats().Pools[0]
	assert.Equal(t, []uint64{1024, 0, 0, 1024}, []uint64{st.Reserved, st.Leased, st.Cached, st.Held})
	checkBooks(t, svc)

	_, err = s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1), 0)
	assert.ErrorIs(t, err, mempool.ErrLimit)
	assert.Contains(t, log.String(), "bad mood")
	checkBooks(t, svc)
	backing.set("Free", nil)
	allocate(t, s, p, 1024)
	checkBooks(t, svc)
}

func TestWaitingForABlockThatCannotBeFreedDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the clock would stand still while a goroutine spins
		svc := newService(t)
		s := open(t, svc)
		p, backing := fakePool(t, s, 1024)
		release(t, allocate(t, s, p, 512))
		release(t, allocate(t, s, p, 1024-512))
		backing.set("Free", errDriver)
		failed := make(chan error)
		for range 2 {
			go func() {
				_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1024), patience)
				failed <- err
			}()
		}
		assert.ErrorIs(t, <-failed, mempool.ErrLimit)
		assert.ErrorIs(t, <-failed, mempool.ErrLimit)
		checkBooks(t, svc)
	})
}

func TestADestroyedPoolIsClosedEvenIfItsBlocksCannotBeFreed(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, backing := fakePool(t, s, 1024)
	release(t, allocate(t, s, p, 1024))
	backing.set("Free", errDriver)
	backing.set("Close", errDriver)
	assert.ErrorIs(t, s.DestroyPool(p.rec.Info.ID), mempool.ErrInternal)
	<-p.closed
	assert.True(t, backing.closed)
	assert.Empty(t, svc.Stats().Pools)
}

func TestAPoolThatCannotBeMadeLeavesItsNameFree(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	fakeFaults.Store(t.Name(), typed.Errorf(mempool.ErrUnavailable, "no such thing here"))
	defer fakeFaults.Delete(t.Name())
	_, err := s.CreatePool(mempool.PoolSpec{Name: "p", Kind: fake, Device: t.Name(), MaxBytes: 512})
	require.ErrorIs(t, err, mempool.ErrUnavailable)
	createPool(t, s, mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 512})
}

func TestDriverInUseIsTheBackingsWord(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, backing := fakePool(t, s, 1024)
	allocate(t, s, p, 1)
	n, err := p.DriverInUse()
	require.NoError(t, err)
	assert.EqualValues(t, 512, n)
	backing.set("InUse", errDriver)
	_, err = p.DriverInUse()
	assert.ErrorIs(t, err, mempool.ErrInternal)
	backing.set("InUse", nil)
}
