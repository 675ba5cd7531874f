package stream

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/harness"
)

// frame subscribes to the channel, publishes a frame and takes it.
func (r *rig) frame(t *testing.T) (from *Consumer, frame *session.Lease, hand *Hand) {
	t.Helper()
	from, err := r.channel.Consume(t.Context(), mempool.SubscribeOptions{})
	require.NoError(t, err)
	t.Cleanup(from.Leave)
	r.publish(t)
	came, err := from.Take(t.Context())
	require.NoError(t, err)
	frame, hand = new(session.Lease), new(Hand)
	require.NoError(t, from.Adopt(t.Context(), frame, hand, came))
	return from, frame, hand
}

func (r *rig) publish(t *testing.T) {
	t.Helper()
	_, err := r.channel.Publish(t.Context(), session.Waiting, r.allocate(t), mempool.FrameOptions{})
	require.NoError(t, err)
}

// The service has one buffer fewer when the client has released the frame that came back. Without ticks, nothing else releases it.
func (r *rig) onlyTheNewestFrameIsLeft(t *testing.T) {
	t.Helper()
	harness.Eventually(t, func() bool { return r.svc.Stats().Buffers == 1 })
}

func withoutTicks(t *testing.T) (*rig, *Producer) {
	t.Helper()
	r := start(t)
	p, err := r.channel.producer(t.Context())
	require.NoError(t, err)
	r.streams.mu.Lock()
	r.streams.ticking = true
	r.streams.mu.Unlock()
	return r, p
}

func TestANoticeThatComesWhileTheDrainEndsIsNotMissed(t *testing.T) {
	r, p := withoutTicks(t)
	_, frame, _ := r.frame(t)
	r.publish(t)
	require.True(t, p.draining.CompareAndSwap(false, true)) // the goroutine has looked at the time, and is about to end
	r.streams.Wanted(r.pool.Info.ID)
	p.endDrain()
	require.NoError(t, frame.Release(t.Context(), false)) // the first frame comes back
	r.onlyTheNewestFrameIsLeft(t)
}

func TestANoticeAlsoCountsForAFrameThatIsPublishedAfterIt(t *testing.T) {
	r, p := withoutTicks(t)
	r.streams.Wanted(r.pool.Info.ID)
	require.False(t, p.draining.Load(), "the channel has no memory that could come back")
	r.publish(t)
	r.publish(t) // the first frame comes back
	r.onlyTheNewestFrameIsLeft(t)
}

func TestAnAllocationGetsMemoryThatALoanHasReclaimed(t *testing.T) {
	r, _ := withoutTicks(t)
	publisher, err := r.channel.Publisher(t.Context(), mempool.Bytes(64))
	require.NoError(t, err)
	busy := make(chan struct{})
	r.session.AddTask(func() { <-busy })
	defer close(busy)
	r.publish(t)
	r.publish(t)                     // the first frame comes back
	require.Nil(t, publisher.look()) // looks for chunks, reclaims the frame, and leaves its release to a task
	r.streams.Collect(t.Context(), r.pool.Info.ID)
	require.NoError(t, r.allocate(t).Release(t.Context(), false))
}

func TestAnArenaThatComesWhenItsChannelIsGoneDoesNotStay(t *testing.T) {
	for _, forgotten := range []bool{true, false} {
		r, _ := withoutTicks(t)
		publisher, err := r.channel.Publisher(t.Context(), mempool.Bytes(64))
		require.NoError(t, err)
		loan := new(session.Lease)
		require.NoError(t, publisher.Loan(t.Context(), session.Once, loan))
		require.NoError(t, loan.Release(t.Context(), false))
		require.NoError(t, r.session.Call(t.Context(), &wire.CloseChannel{Channel: r.channel.Identity.ID}, &wire.EmptyReply{}))
		if forgotten {
			r.streams.tick()
			_, producers, publishers := r.streams.Size()
			require.Zero(t, producers+publishers)
		}
		err = publisher.extend(t.Context(), session.Once, 1) // a request that grow has sent earlier
		if forgotten {
			require.ErrorContains(t, err, `channel "c" is closed`)
		} else {
			require.NoError(t, err)
			r.streams.tick()
		}
		harness.Eventually(t, func() bool { return r.svc.Stats().Leases == 0 })
		require.ErrorIs(t, publisher.Loan(t.Context(), session.Once, loan), mempool.ErrClosed)
	}
}
