package service

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// wants returns how often a session got a Wanted notice for the pool.
func (r *channelRig) wants(w *worker) int {
	r.Helper()
	came := told[Wanted](w)
	for _, n := range came {
		assert.Equal(r, r.pool.rec.Info.ID, n.Pool)
	}
	return len(came)
}

func TestProducersAreAskedForMemoryAgainAndAgainWhileAnAllocationWaits(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 2)
	p, bystander, c := r.produce(hire(t, r.svc)), hire(t, r.svc), r.consume(hire(t, r.svc), MemberSpec{})
	spare := p.send()
	p.send()
	c.next()
	assert.Zero(t, r.wants(p.worker), "nobody waits")
	got := make(chan Lease)
	began := time.Now()
	go func() {
		l, err := bystander.allocate(context.Background(), r.pool.rec.Info.ID, mempool.Bytes(10), patience)
		assert.NoError(t, err)
		got <- l
	}()
	asked := 0
	for asked < 3 {
		asked += r.wants(p.worker)
		time.Sleep(time.Millisecond)
	}
	assert.GreaterOrEqual(t, time.Since(began), 2*wantedRest, "it is not asked more often")
	release(t, spare)
	require.NotNil(t, <-got)
	r.wants(p.worker)
	time.Sleep(wantedRest + 50*time.Millisecond)
	assert.Zero(t, r.wants(p.worker), "nobody waits any more")
	assert.Zero(t, r.wants(bystander)+r.wants(c.worker), "they have no producers")
}

func TestProducersAreAskedWhenAnAllocationIsRefused(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 1)
	p := r.produce(hire(t, r.svc))
	p.send()
	assert.False(t, r.room())
	r.pool.demand.asked = time.Now().Add(time.Hour) // as if that had been just now
	assert.False(t, r.room())
	assert.Equal(t, 1, r.wants(p.worker), "once in a while")
	p.leave()
	r.pool.demand.asked = time.Time{} // long ago
	assert.False(t, r.room())
	assert.Zero(t, r.wants(p.worker), "it has no producer any more")
}

func TestProducersAreAskedWhenABoundIsReached(t *testing.T) {
	svc := newService(t)
	owner := open(t, svc)
	pool := createPool(t, owner, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 20, UserBytes: 4096})
	info, err := owner.MakeChannel(mempool.ChannelSpec{Name: "frames", Pool: pool.rec.Info.ID, Capacity: 2})
	require.NoError(t, err)
	r := &channelRig{t, svc, owner, pool, info}
	p := r.produce(hire(t, svc))
	p.send()
	_, err = owner.Allocate(t.Context(), pool.rec.Info.ID, mempool.Bytes(10), 0, 0)
	require.ErrorIs(t, err, mempool.ErrLimit)
	assert.ErrorIs(t, err, mempool.ErrWanted, "patience may help")
	assert.Equal(t, 1, r.wants(p.worker), "what it gives back counts for the same user")
}

func TestASessionIsAskedForTheMemoryThatItWantsItself(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 1)
	p := r.produce(hire(t, r.svc))
	p.send()
	_, err := p.Allocate(t.Context(), r.pool.rec.Info.ID, mempool.Bytes(10), 0, 0)
	require.ErrorIs(t, err, mempool.ErrWanted)
	assert.Equal(t, 1, r.wants(p.worker))
	waits, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := p.Allocate(waits, r.pool.rec.Info.ID, mempool.Bytes(10), patience, 0)
		ended <- err
	}()
	for r.wants(p.worker) == 0 { // as long as it waits
		time.Sleep(time.Millisecond)
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestPatienceHelpsForAMomentAfterProducersWereAsked(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 1)
	require.NotErrorIs(t, tryAllocate(r.owner, r.pool, 1<<20), mempool.ErrWanted, "that never fits")
	p := r.produce(hire(t, r.svc))
	p.send()
	require.ErrorIs(t, tryAllocate(r.owner, r.pool, 1), mempool.ErrWanted)
	require.Equal(t, 1, r.wants(p.worker))
	r.pool.demand.asked = time.Now().Add(time.Hour) // as if the producer had got Wanted just now
	require.ErrorIs(t, tryAllocate(r.owner, r.pool, 1), mempool.ErrWanted, "another asked it just now")
	require.Zero(t, r.wants(p.worker), "it is not told again")
	r.pool.demand.asked = time.Now().Add(-WantedTime)
	err := tryAllocate(r.owner, r.pool, 1)
	require.ErrorIs(t, err, mempool.ErrLimit)
	require.NotErrorIs(t, err, mempool.ErrWanted, "it has had its time")
}

func TestAnAllocationFindsAtOnceWhatADeadProducerDoesNotNeedAnyMore(t *testing.T) {
	for range 50 { // try again: on a busy machine, a slow call of tidyLocked delays the next call
		r := newChannelRig(t, mempool.ChannelSpec{Capacity: 1}, 2)
		dead, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{Full: mempool.DropOldest})
		dead.send()
		f := c.next()
		gone, _ := dead.end()
		gone()
		r.produce(hire(t, r.svc)).send()
		time.Sleep(100 * tendPause) // the pauses between two calls of tidyLocked become longer
		c.done(f, mempool.Fence{})
		if r.room() {
			return
		}
	}
	t.Error("it never found it at once")
}

func TestAChannelRestsBetweenLooks(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 1}, 2)
	dead, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{Full: mempool.DropOldest})
	dead.send()
	f := c.next()
	gone, _ := dead.end()
	gone()
	r.produce(hire(t, r.svc)).send()
	sh := r.svc.channels.all[r.info.ID]
	rest := func(until time.Time) {
		r.svc.mu.Lock()
		defer r.svc.mu.Unlock()
		sh.rests, r.pool.demand.tidied = until, time.Time{}
	}
	rest(time.Now().Add(time.Hour)) // as if the last call of tidyLocked had taken minutes
	c.done(f, mempool.Fence{})
	time.Sleep(20 * tendPause)
	assert.False(t, r.room(), "nobody looks")
	rest(time.Time{})
	assert.True(t, r.room())

	r.svc.mu.Lock()
	defer r.svc.mu.Unlock()
	begun := time.Now()
	sh.tidyLocked()
	took := time.Since(begun)
	assert.True(t, sh.rests.After(begun))
	assert.Less(t, sh.rests.Sub(begun), (lookRest+2)*took)
}

func TestDoubtsAreLoggedOnceInAWhile(t *testing.T) {
	var log strings.Builder
	svc := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	t.Cleanup(svc.Close)
	owner := open(t, svc)
	pool := createPool(t, owner, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 8 * 4096})
	info, err := owner.MakeChannel(mempool.ChannelSpec{Name: "frames", Pool: pool.rec.Info.ID, Capacity: 2})
	require.NoError(t, err)
	r := &channelRig{t, svc, owner, pool, info}
	c := r.consume(hire(t, svc), MemberSpec{})
	for n := range uint64(5) {
		require.NoError(t, c.Channel(info.ID).Member(c.member.ID).Doubt(70+n, 0))
	}
	assert.Equal(t, 1, strings.Count(log.String(), "contradicts itself"))
	assert.Contains(t, log.String(), "channel=frames")
}

func TestSessionsWithRangesAreAskedForMemory(t *testing.T) {
	svc := newService(t)
	arena, other := hire(t, svc), open(t, svc)
	pool := createPool(t, other, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 4096})
	whole := allocate(t, arena.Session, pool, 4096)
	require.NotErrorIs(t, tryAllocate(other, pool, 1), mempool.ErrWanted, "nobody keeps anything for later")
	release(t, rangeOf(t, whole, 0, 100))
	require.ErrorIs(t, tryAllocate(other, pool, 1), mempool.ErrWanted)
	assert.Equal(t, []Wanted{{Pool: pool.rec.Info.ID}}, told[Wanted](arena))
	freed := make(chan error)
	go func() {
		_, err := other.Allocate(t.Context(), pool.rec.Info.ID, mempool.Bytes(10), patience, 0)
		freed <- err
	}()
	for len(told[Wanted](arena)) == 0 { // again, as long as the other one waits
		time.Sleep(time.Millisecond)
	}
	release(t, whole)
	require.NoError(t, <-freed)
	pool.demand.asked = time.Time{} // long ago
	require.NotErrorIs(t, tryAllocate(other, pool, 4096), mempool.ErrWanted, "its arena is gone")
	assert.Empty(t, pool.demand.dividers)
}
