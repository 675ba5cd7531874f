package bridge

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// lockstep makes a producer and a consumer with a pool of the given number of blocks. The consumer has the frame inHand, which uses one of
// the blocks. ownFor is how long an allocation waits for the producer's own blocks before it waits at the service. lockstep makes ownFor
// very long, so the producer's allocations wait for the block of inHand.
func lockstep(t *testing.T, blocks uint64) (s *channelPair, from *consuming, inHand *Frame) {
	t.Helper()
	s = pair(t, hostPool("p", blocks<<16), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 2})
	from = s.follow(t, mempool.SubscribeOptions{})
	s.send(t, 0)
	sp := s.producer.shared.spares(s.pool.info.ID)
	require.NotNil(t, sp)
	sp.ownFor = patience
	return s, from, receive(t, from, 0)
}

// allocating starts an allocation of a block in the pool, and returns a channel for its error.
func allocating(ctx context.Context, p *Pool) <-chan error {
	ended := make(chan error, 1)
	go func() {
		l, err := p.Allocate(ctx, mempool.Bytes(1<<16))
		if err == nil {
			err = l.Release(false)
		}
		ended <- err
	}()
	return ended
}

// waitsForOwn returns when an allocation waits for the producer's own blocks.
func (s *channelPair) waitsForOwn(t *testing.T) {
	t.Helper()
	sp := s.producer.shared.spares(s.pool.info.ID)
	eventually(t, sp.isFull)
}

func TestTransfersWithRoomForOneBufferAskTheServiceForNothing(t *testing.T) {
	s, from, f := lockstep(t, 1)
	s.producer.shared.spares(s.pool.info.ID).full = time.Now().Add(time.Hour) // until then the client does not ask the service again
	calls := func() uint32 {
		s.producer.mu.Lock()
		defer s.producer.mu.Unlock()
		return s.producer.lastQ
	}
	warm := calls()
	buffer := f.Lease.Info().Buffer
	for n := range uint64(100) {
		released := make(chan error, 1)
		go func() { released <- f.Release() }()
		s.send(t, n+1)
		require.NoError(t, <-released)
		f = receive(t, from, n+1)
		require.Equal(t, buffer, f.Lease.Info().Buffer)
	}
	assert.Equal(t, warm, calls())
	require.NoError(t, f.Release())
}

func TestAnAllocationGetsOthersMemoryThoughItsOwnDoesNotComeBack(t *testing.T) {
	s, _, f := lockstep(t, 2)
	s.producer.shared.spares(s.pool.info.ID).ownFor = time.Nanosecond
	theirs, err := s.consumer.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	l := allocate(t, theirs, 1<<16)
	got := allocating(t.Context(), s.pool)
	s.waitsForOwn(t)
	require.NoError(t, l.Release(false))
	require.NoError(t, <-got)
	require.NoError(t, f.Release())
}

func TestAPoolThatGotRoomIsUsedThoughItWasFull(t *testing.T) {
	s, _, f := lockstep(t, 2)
	theirs, err := s.consumer.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	l := allocate(t, theirs, 1<<16)
	_, err = s.pool.TryAllocate(t.Context(), mempool.Bytes(1<<16))
	require.ErrorIs(t, err, ErrLimit)
	require.NoError(t, l.Release(false))
	_, err = s.consumer.Stats(t.Context())
	require.NoError(t, err, "the service has seen the release")
	require.NoError(t, <-allocating(t.Context(), s.pool), "the service is asked before what is lent is waited for")
	require.NoError(t, f.Release())
}

func TestTheTimeOfAnAllocationThatWaitsForItsOwnMemoryIsLimited(t *testing.T) {
	s, _, f := lockstep(t, 1)
	s.producer.shared.spares(s.pool.info.ID).full = time.Now().Add(time.Hour) // the client asks the service only after this wait
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err := <-allocating(ctx, s.pool)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, ErrLimit)
	ctx, cancel = context.WithCancel(t.Context())
	ended := allocating(ctx, s.pool)
	s.waitsForOwn(t)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NoError(t, f.Release())
}

func TestTheEndOfTheClientOrItsServiceEndsTheWaitForItsOwnMemory(t *testing.T) {
	for what, c := range map[string]struct {
		end  func(s *channelPair) error
		want error
	}{
		"the client is closed": {func(s *channelPair) error { return s.producer.Close() }, ErrClosed},
		"the service ends":     {func(s *channelPair) error { return s.Close() }, ErrDisconnected},
	} {
		t.Run(what, func(t *testing.T) {
			s, _, _ := lockstep(t, 1)
			ended := allocating(context.Background(), s.pool)
			s.waitsForOwn(t)
			require.NoError(t, c.end(s))
			require.ErrorIs(t, <-ended, c.want)
		})
	}
}

func TestAnAllocationWaitsForAFrameThatItsConsumerLeftToAnother(t *testing.T) {
	s, _, _ := lockstep(t, 1)
	ended := allocating(t.Context(), s.pool)
	s.waitsForOwn(t)
	require.NoError(t, s.consumer.Close())
	to, err := dial(t, s.path).TryOpenChannel(t.Context(), "c")
	require.NoError(t, err)
	other, err := to.consume(t.Context(), mempool.SubscribeOptions{})
	require.NoError(t, err)
	t.Cleanup(other.abandon)
	require.NoError(t, receive(t, other, 0).Release())
	require.NoError(t, <-ended)
}

func TestWhoWaitsForMemoryAtTheServiceGetsWhatComesBackToAProducerThatWaitsToo(t *testing.T) {
	s, _, f := lockstep(t, 1)
	mine := allocating(t.Context(), s.pool)
	s.waitsForOwn(t)
	theirs, err := dial(t, s.path).TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	got := make(chan *Lease, 1)
	go func() {
		l, err := theirs.Allocate(context.Background(), mempool.Bytes(1<<16))
		assert.NoError(t, err)
		got <- l
	}()
	eventually(t, s.producer.shared.spares(s.pool.info.ID).isWanted)
	require.NoError(t, f.Release())
	l := <-got // this allocation ends before or after the producer's allocation
	require.NotNil(t, l)
	require.NoError(t, l.Release(false))
	require.NoError(t, <-mine)
}
