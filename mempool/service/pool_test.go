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

func TestAPoolTakesUpToItsLimitAndNotAByteMore(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 2048)
	ctx := context.Background()

	_, err := s.allocate(ctx, p.rec.Info.ID, mempool.Bytes(2049), patience)
	require.ErrorIs(t, err, mempool.ErrLimit)
	assert.EqualError(t, err, `limit reached: pool "`+t.Name()+
		`" is too small for 2049 bytes, which need a block of 2560 bytes: its max_bytes is 2048 bytes; make a pool with a larger max_bytes`)
	a := allocate(t, s, p, 2048)
	_, err = s.allocate(ctx, p.rec.Info.ID, mempool.Bytes(1), 0)
	require.ErrorIs(t, err, mempool.ErrLimit)
	assert.NotErrorIs(t, err, mempool.ErrRecalling, "nothing is on its way")
	assert.EqualError(t, err, `limit reached: no room for 512 bytes in pool "`+t.Name()+
		`": 2048 bytes of 2048 bytes are reserved, of which 2048 bytes are leased and 0 bytes are free but still mapped or being given back; `+
		`release some, wait longer, or make a pool with a larger max_bytes`)
	checkBooks(t, svc)
	release(t, a)
	release(t, allocate(t, s, p, 1))
	checkBooks(t, svc)
}

func TestABufferOfNoBytesHasABlockOfItsOwn(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	tiny := createPool(t, s, mempool.PoolSpec{Name: "tiny", Kind: mempool.Host, MaxBytes: 4096})
	l := allocate(t, s, tiny, 0)
	assert.Zero(t, l.Grant().Bytes)
	assert.EqualValues(t, 4096, l.Grant().BlockBytes)
	checkBooks(t, svc)

	_, err := s.CreatePool(mempool.PoolSpec{Name: "less", Kind: mempool.Host, MaxBytes: 10})
	require.ErrorIs(t, err, mempool.ErrInvalid, "a pool smaller than a page has no block")
	assert.ErrorContains(t, err, "it may take 10 bytes")
	createPool(t, s, mempool.PoolSpec{Name: "less", Kind: mempool.Host, MaxBytes: 4096})
}

func TestASizeClassAboveTheLimitFallsBackToWhatIsNeeded(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 512*17)
	l := allocate(t, s, p, 512*17) // the size class is 18 · 512 bytes
	assert.EqualValues(t, 512*17, l.Grant().BlockBytes)
}

func TestASessionTakesUpToItsLimit(t *testing.T) {
	svc := newService(t)
	s, other := open(t, svc), open(t, svc)
	p := createPool(t, s, mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 4096, SessionBytes: 1024})
	a := allocate(t, s, p, 1024)
	_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1), 0)
	require.ErrorIs(t, err, mempool.ErrLimit)
	assert.EqualError(t, err, `limit reached: session 1 has 1024 bytes, asks for 512 bytes more, and one session may take 1024 bytes in pool "p": `+
		`release some, or make a pool with a larger session_bytes`)
	allocate(t, other, p, 1024)

	// A published buffer still counts for the session that allocated the buffer.
	require.NoError(t, a.Publish(mempool.Publication{Name: "x"}))
	release(t, a)
	_, err = s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1), 0)
	require.ErrorIs(t, err, mempool.ErrLimit)
	require.NoError(t, s.Unpublish("x"))
	allocate(t, s, p, 1024)
	checkBooks(t, svc)
}

func TestALargerBlockFromTheCacheDoesNotPassTheSessionsLimit(t *testing.T) {
	svc := newService(t)
	s, other := open(t, svc), open(t, svc)
	p := createPool(t, s, mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 1536, SessionBytes: 1024})
	first, second := allocate(t, s, p, 512), allocate(t, other, p, 1024)
	release(t, second)
	// A block of 1024 bytes is free, but with that block the session would exceed its limit. The pool cannot grow, so the service must free
	// that block and make a block of 512 bytes.
	l := allocate(t, s, p, 512)
	assert.EqualValues(t, 512, l.Grant().BlockBytes)
	checkBooks(t, svc)
	release(t, first)
	release(t, l)
}

func TestAFullPoolHandsOutABlockUpToTwiceAsLarge(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, backing := fakePool(t, s, 1024)
	release(t, allocate(t, s, p, 1024))
	l := allocate(t, s, p, 512)
	assert.EqualValues(t, 1024, l.Grant().BlockBytes)
	assert.EqualValues(t, 512, l.Grant().Bytes)
	assert.Zero(t, backing.frees)
	checkBooks(t, svc)
}

func TestAnAllocationWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		p, _ := fakePool(t, s, 1024)
		l := allocate(t, s, p, 1024)
		got := make(chan Lease, 2)
		for range 2 {
			go func() {
				l, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1024), patience)
				assert.NoError(t, err)
				got <- l
			}()
		}
		synctest.Wait()
		release(t, l)
		release(t, <-got)
		release(t, <-got)
	})
}

func TestWaitingForRoomEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		p, _ := fakePool(t, s, 1024)
		allocate(t, s, p, 1024)
		began := time.Now()
		_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1), time.Second)
		assert.ErrorIs(t, err, mempool.ErrLimit)
		assert.Equal(t, time.Second, time.Since(began))
	})
}

func TestASmallerAllocationThatFailsWakesWhoWaitsForItsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		p, backing := fakePool(t, s, 1024)
		inside, letGo := backing.block()
		backing.set("Allocate", typed.Errorf(mempool.ErrInternal, "broken"))
		failed := make(chan error, 2)
		go func() {
			_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1024), 0)
			failed <- err
		}()
		<-inside // that allocation has reserved all memory of the pool
		go func() {
			_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(512), patience)
			failed <- err
		}()
		synctest.Wait()
		letGo()
		assert.ErrorIs(t, <-failed, mempool.ErrInternal)
		assert.ErrorIs(t, <-failed, mempool.ErrInternal, "it tried as soon as there was room again")
		checkBooks(t, svc)
	})
}
