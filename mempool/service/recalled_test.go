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

// recalling returns a client with a recalled block, which the client has not dropped yet, in a pool that another session has filled.
func recalling(t *testing.T) (c *client, p *Pool, block uint64, held Lease) {
	t.Helper()
	svc := newService(t)
	owner := open(t, svc)
	c = openClient(t, svc, mempool.Self())
	p, _ = fakePool(t, owner, 4096)
	held = allocate(t, owner, p, 2048)
	l := allocate(t, c.Session, p, 512)
	block = mapBlock(t, l)
	release(t, l)
	require.ErrorIs(t, tryAllocate(c.Session, p, 4096), mempool.ErrRecalling)
	return c, p, block, held
}

func TestAnAllocationEndsWhenAllRecalledBlocksHaveComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p, block, _ := recalling(t)
		time.AfterFunc(100*time.Millisecond, func() { assert.NoError(t, c.Dropped([]uint64{block})) })
		began := time.Now()
		_, err := c.Allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(4096), 0, time.Hour)
		require.ErrorIs(t, err, mempool.ErrLimit)
		assert.Equal(t, 100*time.Millisecond, time.Since(began))
	})
}

func TestAnAllocationWithoutMemoryEndsAfterTheLeastTimeIfNoBlockIsOnItsWayBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		p, backing := fakePool(t, s, 4096)
		backing.set("Allocate", typed.Errorf(mempool.ErrOutOfMemory, "none"))
		began := time.Now()
		_, err := s.Allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(512), 0, time.Hour)
		require.ErrorIs(t, err, mempool.ErrOutOfMemory)
		assert.Less(t, time.Since(began), time.Second)
	})
}

func TestAnAllocationWaitsForBlocksThatAreRecalledWhileItWaits(t *testing.T) {
	for what, failure := range map[string]error{"the pool is full": nil, "there is no memory": typed.Errorf(mempool.ErrOutOfMemory, "none")} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				svc := newService(t)
				s := open(t, svc)
				c := openClient(t, svc, mempool.Self())
				p, backing := fakePool(t, s, 4096)
				first, second := allocate(t, c.Session, p, 512), allocate(t, c.Session, p, 1024)
				blocks := []uint64{mapBlock(t, first), mapBlock(t, second)}
				defer release(t, allocate(t, s, p, 2048))
				backing.set("Allocate", failure)
				release(t, first)
				require.Error(t, tryAllocate(s, p, 2048))
				began := time.Now()
				time.AfterFunc(5*time.Millisecond, func() { assert.NoError(t, c.Dropped(blocks[:1])) })
				time.AfterFunc(20*time.Millisecond, func() { release(t, second) }) // then the service recalls its block
				time.AfterFunc(80*time.Millisecond, func() {
					backing.set("Allocate", nil)
					assert.NoError(t, c.Dropped(blocks[1:]))
				})
				_, err := s.Allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(2048), 0, time.Hour)
				require.NoError(t, err)
				assert.Equal(t, 80*time.Millisecond, time.Since(began))
			})
		})
	}
}

func TestAnAllocationDoesNotWaitForABlockThatTheDriverFailedToFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		p, backing := fakePool(t, s, 4096)
		backing.set("Free", errDriver)
		release(t, allocate(t, s, p, 512))
		_, err := s.TrimPool(p.rec.Info.ID, 0)
		require.Error(t, err)
		began := time.Now()
		_, err = s.Allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(4096), 0, time.Hour)
		require.ErrorIs(t, err, mempool.ErrLimit)
		assert.Less(t, time.Since(began), time.Second)
		backing.set("Free", nil)
	})
}

func TestAnAllocationStillWaitsForAsLongAsItsClientWants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p, block, held := recalling(t)
		require.NoError(t, c.Dropped([]uint64{block}))
		time.AfterFunc(300*time.Millisecond, func() { release(t, held) })
		_, err := c.Allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(4096), time.Second, time.Hour)
		require.NoError(t, err)
	})
}

func TestAnAllocationWaitsForWorkOnBlocksThatCountForItsSession(t *testing.T) {
	svc := newService(t)
	p := createPool(t, open(t, svc), mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 8192, SessionBytes: 1024})
	w := hire(t, svc)
	a, b := allocate(t, w.Session, p, 512), allocate(t, w.Session, p, 512)
	f := w.fence()
	releaseAll(t, []Lease{a, b}, func(int) mempool.Fence { return f })
	require.ErrorIs(t, tryAllocate(w.Session, p, 1024), mempool.ErrRecalling)
	time.AfterFunc(4*WantedTime, func() { w.reach(f) })
	_, err := w.Allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1024), 0, time.Hour)
	require.NoError(t, err)
}
