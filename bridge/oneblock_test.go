package bridge

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// lockstep makes a producer and a consumer with a pool of one block, which the consumer has in hand as a frame.
func lockstep(t *testing.T) (s *channelPair, inHand *Frame) {
	t.Helper()
	s = pair(t, hostPool("p", 1<<16), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 2})
	from := s.follow(t, mempool.SubscribeOptions{})
	s.send(t, 0)
	return s, receive(t, from, 0)
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

// waits returns when n allocations wait at the service.
func (s *channelPair) waits(t *testing.T, n int) {
	t.Helper()
	eventually(t, func() bool { return s.svc.Counts().Waiting["room"] == n })
}

func TestTheTimeOfAnAllocationThatWaitsForItsOwnMemoryIsLimited(t *testing.T) {
	s, f := lockstep(t)
	late, pass := dueNow(t)
	defer pass()
	late.at = time.Now().Add(time.Millisecond)
	err := <-allocating(late, s.pool)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, ErrLimit)
	ctx, cancel := context.WithCancel(t.Context())
	ended := allocating(ctx, s.pool)
	s.waits(t, 1)
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
			s, _ := lockstep(t)
			ended := allocating(context.Background(), s.pool)
			s.waits(t, 1)
			require.NoError(t, c.end(s))
			require.ErrorIs(t, <-ended, c.want)
		})
	}
}

func TestAnAllocationWaitsForAFrameThatItsConsumerLeftToAnother(t *testing.T) {
	s, _ := lockstep(t)
	ended := allocating(t.Context(), s.pool)
	s.waits(t, 1)
	require.NoError(t, s.consumer.Close())
	to, err := dial(t, s.path).TryOpenChannel(t.Context(), "c")
	require.NoError(t, err)
	other, err := to.subscribe(t.Context(), mempool.SubscribeOptions{})
	require.NoError(t, err)
	t.Cleanup(other.Leave)
	require.NoError(t, receive(t, other, 0).Release())
	require.NoError(t, <-ended)
}

func TestAllWhoWaitForMemoryGetWhatComesBackToAProducer(t *testing.T) {
	s, f := lockstep(t)
	mine := allocating(t.Context(), s.pool)
	theirs, err := dial(t, s.path).TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	others := allocating(t.Context(), theirs)
	s.waits(t, 2)
	require.NoError(t, f.Release())
	require.NoError(t, <-mine)
	require.NoError(t, <-others)
}
