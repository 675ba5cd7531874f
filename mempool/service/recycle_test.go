package service

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestSteadyWorkMakesNoDriverCalls(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, backing := fakePool(t, s, 1<<20)
	for range 100 {
		release(t, allocate(t, s, p, 1000))
	}
	assert.Equal(t, 1, svc.Stats().Pools[0].Blocks)
	backing.set("Allocate", typed.Errorf(mempool.ErrInternal, "no call expected"))
	release(t, allocate(t, s, p, 1000))
}

func TestTrimGivesBackWhatNobodyMapsAndAsksForTheRest(t *testing.T) {
	svc := newService(t)
	c := openClient(t, svc, mempool.Self())
	p, backing := fakePool(t, c.Session, 1<<20)
	idle, mapped, leased := allocate(t, c.Session, p, 512), allocate(t, c.Session, p, 1024), allocate(t, c.Session, p, 2048)
	block := mapBlock(t, mapped)
	mapBlock(t, leased)
	release(t, idle)
	release(t, mapped)

	n, err := c.TrimPool(p.rec.Info.ID, 4096)
	require.NoError(t, err)
	assert.Zero(t, n, "that much may stay")
	n, err = c.TrimPool(p.rec.Info.ID, 0)
	require.NoError(t, err)
	assert.EqualValues(t, 512, n)
	assert.Equal(t, []uint64{block}, c.asked())
	st := svc.Stats().Pools[0]
	assert.Equal(t, []uint64{3072, 2048, 0, 1024}, []uint64{st.Reserved, st.Leased, st.Cached, st.Held})
	checkBooks(t, svc)

	n, err = c.TrimPool(p.rec.Info.ID, 0)
	require.NoError(t, err)
	assert.Zero(t, n)
	assert.Empty(t, c.asked(), "it was asked before")
	require.NoError(t, c.Dropped([]uint64{block}))
	assert.Equal(t, 2, backing.frees)
	checkBooks(t, svc)
	_, err = c.TrimPool(99, 0)
	assert.ErrorIs(t, err, mempool.ErrNotFound)
}

func TestABlockThatIsAskedBackIsNotHandedOut(t *testing.T) {
	svc := newService(t)
	c := openClient(t, svc, mempool.Self())
	p, _ := fakePool(t, c.Session, 4096)
	l := allocate(t, c.Session, p, 512)
	block := mapBlock(t, l)
	release(t, l)
	_, err := c.TrimPool(p.rec.Info.ID, 0)
	require.NoError(t, err)
	assert.NotEqual(t, block, allocate(t, c.Session, p, 512).Grant().Block)
	checkBooks(t, svc)
}

func TestABlockIsFreedWhenTheLastOfThoseWhoMapItDropsIt(t *testing.T) {
	svc := newService(t)
	a, b := openClient(t, svc, mempool.Self()), openClient(t, svc, mempool.Self())
	p, backing := fakePool(t, a.Session, 4096)
	l := allocate(t, a.Session, p, 512)
	block := mapBlock(t, l)
	publish(t, l, mempool.Publication{Name: "x"})
	r, err := b.getLease(context.Background(), "x", false, 0)
	require.NoError(t, err)
	mapBlock(t, r)
	require.NoError(t, a.Unpublish("x"))
	release(t, l)
	release(t, r)
	_, err = a.TrimPool(p.rec.Info.ID, 0)
	require.NoError(t, err)
	assert.Equal(t, []uint64{block}, a.asked())
	assert.Equal(t, []uint64{block}, b.asked())
	require.NoError(t, a.Dropped([]uint64{block}))
	assert.Zero(t, backing.frees)
	b.End(mempool.SessionLeft, "", nil)
	assert.Equal(t, 1, backing.frees)
	checkBooks(t, svc)
}

func TestAFullPoolGivesUpWhatLiesIdle(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, backing := fakePool(t, s, 4096)
	for _, l := range []Lease{allocate(t, s, p, 512), allocate(t, s, p, 512), allocate(t, s, p, 2048)} {
		release(t, l)
	}
	allocate(t, s, p, 3072)
	assert.Equal(t, 3, backing.frees)
	checkBooks(t, svc)
}

func TestAFullPoolAsksForWhatIsMappedAndTheAllocationWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s, c := open(t, svc), openClient(t, svc, mempool.Self())
		p, _ := fakePool(t, s, 4096)
		l := allocate(t, c.Session, p, 512)
		block := mapBlock(t, l)
		release(t, l)
		_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(4096), 0)
		require.ErrorIs(t, err, mempool.ErrLimit)
		require.ErrorIs(t, err, mempool.ErrRecalling)
		got := make(chan Lease)
		go func() {
			l, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(4096), patience)
			assert.NoError(t, err)
			got <- l
		}()
		synctest.Wait()
		assert.Equal(t, []uint64{block}, c.asked(), "once")
		require.NoError(t, c.Dropped([]uint64{block}))
		release(t, <-got)
		checkBooks(t, svc)
	})
}

func TestAnAllocationWaitsBeyondItsLimitForMemoryThatIsBeingGivenBack(t *testing.T) {
	for name, failure := range map[string]error{"the pool is full": nil, "there is no memory": typed.Errorf(mempool.ErrOutOfMemory, "none")} {
		for free, fault := range map[string]error{"freed": nil, "stuck": typed.Errorf(mempool.ErrInternal, "stuck")} {
			t.Run(name+", "+free, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					svc := newService(t)
					s := open(t, svc)
					p, backing := fakePool(t, s, 4096)
					l := allocate(t, s, p, 4096)
					freed := make(chan struct{})
					memory := svc.memoryOf(l.rec.Buffer.Block)
					memory.Allocation = trap{memory.Allocation, func() { <-freed }}
					release(t, l)
					trimmed := make(chan struct{})
					go func() {
						_, _ = s.TrimPool(p.rec.Info.ID, 0)
						close(trimmed)
					}()
					synctest.Wait()
					backing.set("Allocate", failure)
					n := uint64(4096)
					if failure != nil {
						p.rec.Info.MaxBytes = 8192
						s.svc.ledger.Touch(p.rec)
					}
					got := make(chan error)
					go func() {
						_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(n), time.Second)
						got <- err
					}()
					time.Sleep(time.Minute)
					select {
					case err := <-got:
						t.Fatalf("it gave up: %v", err)
					default:
					}
					backing.set("Allocate", nil)
					backing.set("Free", fault)
					close(freed)
					err := <-got
					switch {
					case fault == nil || failure != nil:
						assert.NoError(t, err)
					default:
						assert.ErrorIs(t, err, mempool.ErrLimit)
					}
					<-trimmed
					backing.set("Free", nil)
				})
			})
		}
	}
}

func TestAnAllocationDoesNotWaitBeyondItsLimitForWhatIsGivenBackLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		p, _ := fakePool(t, s, 4096)
		l := allocate(t, s, p, 4096)
		got := make(chan error)
		go func() {
			_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(4096), time.Second)
			got <- err
		}()
		began := time.Now()
		assert.ErrorIs(t, <-got, mempool.ErrLimit)
		assert.Equal(t, time.Second, time.Since(began))
		release(t, l)
	})
}

// A block that the driver failed to free is stuck. When the service frees other blocks, it also tries again to free the stuck blocks.
func TestMemoryThatCouldNotBeGivenBackKeepsNoOther(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, backing := fakePool(t, s, 4096)
	first, second := allocate(t, s, p, 1024), allocate(t, s, p, 512)
	backing.set("Free", typed.Errorf(mempool.ErrInternal, "stuck"))
	release(t, first)
	_, err := s.TrimPool(p.rec.Info.ID, 0)
	require.ErrorIs(t, err, mempool.ErrInternal)
	release(t, second)
	_, err = s.TrimPool(p.rec.Info.ID, 0)
	require.ErrorIs(t, err, mempool.ErrInternal)
	st := svc.Stats().Pools[0]
	assert.Equal(t, []uint64{0, 1536}, []uint64{st.Cached, st.Held})
	third := allocate(t, s, p, 512)
	release(t, third)
	require.ErrorIs(t, s.DestroyPool(p.rec.Info.ID), mempool.ErrInternal)
	<-p.closed
}

func TestADestroyedPoolGoesWithItsLastLeaseAndMapping(t *testing.T) {
	svc := newService(t)
	c := openClient(t, svc, mempool.Self())
	p, backing := fakePool(t, c.Session, 4096)
	l := allocate(t, c.Session, p, 512)
	block := mapBlock(t, l)
	kept := allocate(t, c.Session, p, 512)
	publish(t, kept, mempool.Publication{Name: "x", Keep: true})
	release(t, kept)
	require.NoError(t, c.DestroyPool(p.rec.Info.ID))
	require.NoError(t, c.DestroyPool(p.rec.Info.ID), "again, while it lives")

	ctx := context.Background()
	_, err := c.allocate(ctx, p.rec.Info.ID, mempool.Bytes(1), patience)
	assert.ErrorIs(t, err, mempool.ErrClosed)
	_, err = c.getLease(ctx, "x", false, 0)
	assert.ErrorIs(t, err, mempool.ErrNotFound)
	_, err = c.OpenPool(ctx, p.rec.Info.Name, 0)
	assert.ErrorIs(t, err, mempool.ErrNotFound)
	require.NoError(t, memory(l).CopyFrom(0, []byte("still mine")))
	again := createPool(t, c.Session, mempool.PoolSpec{Name: p.rec.Info.Name, Kind: fake, MaxBytes: 512})
	assert.NotEqual(t, p.rec.Info.ID, again.rec.Info.ID)
	checkBooks(t, svc)

	release(t, l)
	assert.False(t, backing.closed)
	assert.Equal(t, []uint64{block}, c.asked())
	require.NoError(t, c.Dropped([]uint64{block}))
	assert.True(t, backing.closed)
	assert.ErrorIs(t, c.DestroyPool(p.rec.Info.ID), mempool.ErrNotFound)
	_, err = c.FindPool(again.rec.Info.ID)
	assert.NoError(t, err)
	_, err = c.OpenPool(ctx, p.rec.Info.Name, 0)
	assert.NoError(t, err, "the name is the new pool's")
}

func TestDestroyingAPoolWakesWhoWaitsInIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s, other := open(t, svc), open(t, svc)
		p, _ := fakePool(t, s, 512)
		l := allocate(t, s, p, 1)
		ended := make(chan error)
		go func() {
			_, err := other.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1), patience)
			ended <- err
		}()
		synctest.Wait()
		require.NoError(t, s.DestroyPool(p.rec.Info.ID))
		assert.ErrorIs(t, <-ended, mempool.ErrClosed)
		release(t, l)
	})
}

func TestABlockMadeForAPoolThatIsDestroyedMeanwhileGoesWithIt(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, backing := fakePool(t, s, 1024)
	inside, letGo := backing.block()
	failed := make(chan error)
	go func() {
		_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1), 0)
		failed <- err
	}()
	<-inside
	require.NoError(t, s.DestroyPool(p.rec.Info.ID))
	assert.False(t, backing.closed)
	letGo()
	assert.ErrorIs(t, <-failed, mempool.ErrClosed)
	<-p.closed
	assert.Zero(t, backing.used)
}
