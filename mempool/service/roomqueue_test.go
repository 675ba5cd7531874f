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

// applicant waits for room in a pool.
type applicant struct {
	lease  Lease
	err    error
	cancel context.CancelFunc
}

func apply(s *Session, p *Pool, n uint64) *applicant {
	a := new(applicant)
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	go func() { a.lease, a.err = s.allocate(ctx, p.rec.Info.ID, mempool.Bytes(n), time.Hour) }()
	synctest.Wait()
	return a
}

func TestWhoeverStandsFirstIsWokenAndTheOthersSleepOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		p, _ := fakePool(t, s, 1024)
		held := allocate(t, s, p, 1024)
		var line []*applicant
		for range 4 {
			line = append(line, apply(s, p, 1024))
		}
		release(t, held)
		synctest.Wait()
		require.NotNil(t, line[0].lease.rec)
		var places []*place
		for pl := p.room.lines[1024].first; pl != nil; pl = pl.next {
			places = append(places, pl)
		}
		require.Len(t, places, 3)
		assert.Equal(t, p.room.changes, places[0].tried, "the next has looked too: there might have been more")
		assert.Less(t, places[1].tried, p.room.changes)
		assert.Less(t, places[2].tried, p.room.changes)
		for i := range line {
			require.NotNil(t, line[i].lease, "%d", i)
			release(t, line[i].lease)
			synctest.Wait()
		}
		assert.Empty(t, p.room.lines)
		checkBooks(t, svc)
	})
}

func TestWhoeverGivesUpPassesTheTurnOn(t *testing.T) {
	for range 50 { // the scheduler decides which goroutine is first
		synctest.Test(t, func(t *testing.T) {
			svc := newService(t)
			s := open(t, svc)
			p, _ := fakePool(t, s, 1024)
			held := allocate(t, s, p, 1024)
			first, second := apply(s, p, 1024), apply(s, p, 1024)
			first.cancel()
			release(t, held)
			synctest.Wait()
			if first.lease.rec != nil {
				release(t, first.lease)
				synctest.Wait()
			} else {
				assert.ErrorIs(t, first.err, context.Canceled)
			}
			require.NotNil(t, second.lease.rec)
			assert.Empty(t, p.room.lines)
		})
	}
}

func TestAnAllocationThatMayNotWaitTakesNothingFromThoseThatHaveWaited(t *testing.T) {
	for range 50 { // the scheduler decides which goroutine is first
		synctest.Test(t, func(t *testing.T) {
			svc := newService(t)
			s := open(t, svc)
			p, _ := fakePool(t, s, 2048)
			held, rest := allocate(t, s, p, 1024), allocate(t, s, p, 1024)
			first := apply(open(t, svc), p, 1024)
			release(t, held)
			for _, n := range []uint64{512, 1024} {
				_, err := s.allocate(t.Context(), p.rec.Info.ID, mempool.Bytes(n), 0)
				require.ErrorIs(t, err, mempool.ErrLimit)
			}
			synctest.Wait()
			require.NotNil(t, first.lease.rec)

			second := apply(open(t, svc), p, 1024)
			release(t, rest)
			release(t, first.lease)
			allocate(t, s, p, 1024) // there is room for both
			synctest.Wait()
			require.NotNil(t, second.lease.rec)
			checkBooks(t, svc)
		})
	}
}

func TestALargeAllocationThatWaitsHoldsNoSmallerOneUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		p, _ := fakePool(t, s, 2048)
		first, rest := allocate(t, s, p, 512), allocate(t, s, p, 1536)
		large, small := apply(s, p, 2048), apply(s, p, 512)
		release(t, first)
		synctest.Wait()
		require.NotNil(t, small.lease.rec)
		require.Nil(t, large.lease.rec)
		release(t, small.lease)
		release(t, rest)
		synctest.Wait()
		require.NotNil(t, large.lease.rec)
		release(t, large.lease)
		checkBooks(t, svc)
	})
}

func TestASessionAtItsOwnLimitHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		a, b := open(t, svc), open(t, svc)
		p := createPool(t, a, mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 2048, SessionBytes: 1024})
		mine, theirs := allocate(t, a, p, 1024), allocate(t, b, p, 1024)
		first := apply(a, p, 1024)
		second := apply(b, p, 1024)
		release(t, theirs)
		synctest.Wait()
		require.Nil(t, first.lease.rec)
		require.NotNil(t, second.lease.rec)
		release(t, mine)
		synctest.Wait()
		require.NotNil(t, first.lease.rec)
		checkBooks(t, svc)
	})
}

func TestEverybodyInALineLearnsThatThePoolIsDestroyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		p, _ := fakePool(t, s, 1024)
		held := allocate(t, s, p, 1024)
		line := []*applicant{apply(s, p, 1024), apply(s, p, 1024), apply(s, p, 512)}
		require.NoError(t, s.DestroyPool(p.rec.Info.ID))
		synctest.Wait()
		for _, a := range line {
			assert.ErrorIs(t, a.err, mempool.ErrClosed)
		}
		release(t, held)
	})
}

func TestEachPlaceOfAQueueIsLookedAtAFewTimesHoweverManyLeave(t *testing.T) {
	const many = 10_000
	r := roomQueue{mutex: new(mutex)}
	var places []*place
	for range many {
		pl := r.join(nil, 512)
		pl.woken(r.changes, true)
		places = append(places, pl)
	}
	for i := range places {
		places[(i*7919)%many].leave() // in any order: 7919 is prime
	}
	assert.Empty(t, r.lines)
	assert.LessOrEqual(t, r.looks, uint64(4*many))
	r.mutex.Lock()
	r.mutex.Unlock() //nolint:staticcheck // it closes the channels of those who were woken
}
