package service

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// Many sessions use a pool at the same time. Each session writes its own mark into its blocks. If two sessions share a block by mistake,
// one session finds the mark of the other.
func TestManySessionsAtOnceShareNoBlockByMistake(t *testing.T) {
	svc := newService(t)
	p := createPool(t, open(t, svc), mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 64 << 12, SessionBytes: 24 << 12})
	const rounds = 300
	var all sync.WaitGroup
	for id := range uint64(6) {
		all.Go(func() {
			random := rand.New(rand.NewPCG(id, 7))
			for range rounds / 50 {
				liveOnce(t, svc, p, random, byte(id+1), 50)
			}
		})
	}
	all.Go(func() {
		s := open(t, svc)
		for range rounds {
			_, err := s.TrimPool(p.rec.Info.ID, 0)
			assert.NoError(t, err)
			_ = s.View().Stats()
		}
	})
	all.Wait()
	checkBooks(t, svc)
	st := svc.Stats()
	assert.Zero(t, st.Leases)
	assert.Equal(t, st.Pools[0].Reserved, st.Pools[0].Cached, "every process is gone")
}

// liveOnce opens a session, uses it for some rounds and ends it.
func liveOnce(t *testing.T, svc *Service, p *Pool, random *rand.Rand, mark byte, rounds int) {
	recalls := make(chan []uint64, 4096)
	s, err := svc.OpenSession(mempool.Self(), "", func(n Notice) { recalls <- n.(Recall).Blocks })
	if !assert.NoError(t, err) {
		return
	}
	ctx := context.Background()
	name := string(rune('a' + mark%3))
	for range rounds {
		var l Lease
		if random.IntN(2) == 0 {
			l, err = s.allocate(ctx, p.rec.Info.ID, mempool.Bytes(random.Uint64N(6<<12)), time.Duration(random.IntN(2))*time.Millisecond)
		} else {
			l, err = s.getLease(ctx, name, random.IntN(2) == 0, time.Duration(random.IntN(2))*time.Millisecond)
		}
		if err == nil {
			useOnce(t, l, random, mark, name)
		}
		for len(recalls) > 0 {
			for _, id := range <-recalls {
				_ = s.Dropped([]uint64{id}) // refused while the block is leased
			}
		}
	}
	gone := make(chan struct{})
	reclaimed := s.End(mempool.SessionLeft, "", gone)
	_ = s.Unpublish(name)
	close(gone)
	<-reclaimed
}

func useOnce(t *testing.T, l Lease, random *rand.Rand, mark byte, name string) {
	info := l.Grant()
	if random.IntN(4) > 0 {
		_, _, _ = l.Export()
	}
	if info.Write {
		assert.NoError(t, memory(l).Fill(0, info.Bytes, mark))
		got := make([]byte, info.Bytes)
		assert.NoError(t, memory(l).CopyTo(got, 0))
		for _, b := range got {
			if b != mark {
				t.Errorf("somebody else wrote %d into the block of %d", b, mark)
				break
			}
		}
		if random.IntN(2) == 0 {
			_ = l.Publish(mempool.Publication{Name: name, Replace: true})
		}
	}
	if random.IntN(8) > 0 { // otherwise the end of the session releases the lease
		assert.NoError(t, l.Release(random.IntN(8) == 0))
	}
}

func TestReleaseDestroyAndEndMayMeet(t *testing.T) {
	for range 50 {
		svc := newService(t)
		s, c := open(t, svc), openClient(t, svc, mempool.Self())
		p := createPool(t, s, mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 1 << 20})
		var leases []Lease
		for i := range 8 {
			l := allocate(t, c.Session, p, 100)
			mapBlock(t, l)
			leases = append(leases, l)
			if i%2 == 0 {
				require.NoError(t, l.Publish(mempool.Publication{Name: string(rune('a' + i))}))
			}
		}
		gone := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			for _, l := range leases {
				_ = l.Release(false)
			}
		})
		all.Go(func() { <-c.End(mempool.SessionLeft, "", gone) })
		all.Go(func() { _ = s.DestroyPool(p.rec.Info.ID) })
		all.Go(func() { _, _ = s.TrimPool(p.rec.Info.ID, 0) })
		all.Go(func() { close(gone) })
		all.Go(func() {
			for i := range 8 {
				_ = s.Unpublish(string(rune('a' + i)))
			}
		})
		all.Wait()
		<-p.closed
		assert.Equal(t, mempool.ServiceStats{Sessions: 1}, svc.Stats())
		assert.Zero(t, svc.ledger.Buffers.Len())
	}
}
