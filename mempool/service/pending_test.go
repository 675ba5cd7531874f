package service

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// releaseAll releases leases. The function `done` returns the fence for each lease.
func releaseAll(t *testing.T, leases []Lease, done func(i int) mempool.Fence) {
	t.Helper()
	for i, l := range leases {
		require.NoError(t, l.ReleaseAt(false, []mempool.Fence{done(i)}))
	}
}

func TestABlockWhoseWorkEndedIsFoundInTheBackgroundAmongManyThatHaveSome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const blocks = 1000
		svc := newService(t)
		p, backing := fakePool(t, open(t, svc), blocks*512)
		bad, good := hire(t, svc), hire(t, svc)
		var mine, theirs []Lease
		for i := range blocks {
			if i == blocks/2 {
				mine = append(mine, allocate(t, good.Session, p, 512))
			} else {
				theirs = append(theirs, allocate(t, bad.Session, p, 512))
			}
		}
		unreached, soon := bad.fence(), good.fence()
		releaseAll(t, theirs[:blocks/2], func(int) mempool.Fence { return unreached })
		releaseAll(t, mine, func(int) mempool.Fence { return soon })
		releaseAll(t, theirs[blocks/2:], func(int) mempool.Fence { return unreached })
		good.reach(soon)
		first := allocate(t, good.Session, p, 512)
		assert.Equal(t, theirs[0].Grant().Block, first.Grant().Block, "the oldest: a look at all of them would take too long")
		time.Sleep(2 * drainRest)
		second := allocate(t, good.Session, p, 512)
		assert.Equal(t, mine[0].Grant().Block, second.Grant().Block)
		assert.Empty(t, second.Grant().Wait)
		assert.Zero(t, backing.frees)
		synctest.Wait()
		time.Sleep(2 * drainRest)
		svc.mu.Lock()
		assert.False(t, p.watched, "nobody passes by any more")
		svc.mu.Unlock()
		checkBooks(t, svc)
	})
}

func TestASessionAtItsLimitFindsItsOwnPendingBlocksBehindManyOfOthers(t *testing.T) {
	const blocks = 200
	svc := newService(t)
	p := createPool(t, open(t, svc), mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: blocks * 512, SessionBytes: (blocks - 2) * 512})
	bad := hire(t, svc)
	small := hire(t, svc)
	var theirs, mine []Lease
	for range blocks - 2 {
		theirs = append(theirs, allocate(t, bad.Session, p, 512))
	}
	mine = append(mine, allocate(t, small.Session, p, 512), allocate(t, small.Session, p, 512))
	never := bad.fence()
	releaseAll(t, theirs, func(int) mempool.Fence { return never })
	releaseAll(t, mine, func(int) mempool.Fence { return small.fence() })
	l := allocate(t, bad.Session, p, 512)
	assert.Equal(t, theirs[0].Grant().Block, l.Grant().Block, "its own, the oldest first")
	other := allocate(t, bad.Session, p, 512)
	assert.Equal(t, theirs[1].Grant().Block, other.Grant().Block)
	checkBooks(t, svc)
}

// In a random order, the test allocates and releases blocks, ends the work on blocks, and trims the pool. The lists of pending blocks must
// lose no block.
func TestRandomWorkOnFreeBlocksKeepsTheBooks(t *testing.T) {
	for seed := range seeds(20) {
		random := rand.New(rand.NewPCG(seed, 3))
		svc := newService(t)
		p := createPool(t, open(t, svc), mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 1 << 17, SessionBytes: 1 << 16})
		workers := []*worker{hire(t, svc), hire(t, svc), hire(t, svc)}
		held := make([][]Lease, len(workers))
		for range 500 {
			i := random.IntN(len(workers))
			w := workers[i]
			switch random.IntN(10) {
			case 0, 1, 2, 3:
				l, err := w.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(512<<random.IntN(4)), 0)
				if err == nil {
					held[i] = append(held[i], l)
				}
			case 4, 5, 6, 7, 8:
				if len(held[i]) > 0 {
					n := random.IntN(len(held[i]))
					var done []mempool.Fence
					if random.IntN(4) > 0 {
						done = []mempool.Fence{w.fence()}
					}
					require.NoError(t, held[i][n].ReleaseAt(false, done))
					held[i] = slices.Delete(held[i], n, n+1)
				}
			case 9:
				if w.next > 0 {
					w.reach(mempool.Fence{Timeline: w.id, Word: workerWord, Value: 1 + random.Uint64N(w.next)})
				}
				if random.IntN(4) == 0 {
					_, err := w.TrimPool(p.rec.Info.ID, random.Uint64N(1<<16))
					require.NoError(t, err)
				}
			}
			// A goroutine of the service may free blocks at any time, as soon as the work on the blocks has ended. So the test compares the
			// backing's count only at the end, after svc.drains.Wait.
			svc.mu.Lock()
			assert.Equal(t, p.rec.Reserved, p.rec.Leased+p.rec.Cached+p.rec.Held)
			svc.mu.Unlock()
		}
		for i, w := range workers {
			for _, l := range held[i] {
				release(t, l)
			}
			w.reach(w.fence())
		}
		svc.drains.Wait()
		checkBooks(t, svc)
		_, err := workers[0].TrimPool(p.rec.Info.ID, 0)
		require.NoError(t, err)
		st := svc.Stats().Pools[0]
		assert.Equal(t, []uint64{0, 0}, []uint64{st.Reserved, uint64(st.Blocks)})
	}
}
