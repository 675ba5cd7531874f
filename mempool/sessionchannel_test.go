package mempool

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFramesInThisProcess(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p := createPool(t, s, PoolSpec{Name: "p", Kind: Host, MaxBytes: 1 << 20})
	ctx := context.Background()
	_, err := s.CreateChannel(ChannelSpec{Name: "c", Pool: p.info.ID, Capacity: 2})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "set ThroughService")
	ch, err := s.CreateChannel(ChannelSpec{Name: "c", Pool: p.info.ID, Capacity: 2, ThroughService: true})
	require.NoError(t, err)
	consumer := open(t, svc)
	same, err := consumer.OpenChannel(ctx, "c", 0)
	require.NoError(t, err)
	meta := map[string]string{"n": "1"}
	const frames = 100
	publish := func(from, to int) {
		for i := from; i < to; i++ {
			l, err := s.Allocate(ctx, p.info.ID, Bytes(1), patience)
			assert.NoError(t, err)
			assert.NoError(t, l.CopyFrom(0, []byte{byte(i)}))
			_, err = ch.Publish(ctx, l, FrameOptions{Meta: meta})
			assert.NoError(t, err)
		}
	}
	publish(0, 2) // they are kept
	want := 0
	for f, err := range same.Frames(ctx, SubscribeOptions{Oldest: true}) {
		require.NoError(t, err)
		if want == 0 {
			go func() {
				publish(2, frames)
				assert.NoError(t, ch.Shut())
			}()
		}
		b := make([]byte, 1)
		require.NoError(t, f.Lease.CopyTo(b, 0))
		assert.EqualValues(t, want, b[0])
		want++
		assert.EqualValues(t, want, f.Seq)
		assert.Equal(t, meta, f.Meta)
		require.NoError(t, f.Release())
		assert.ErrorIs(t, f.Release(), ErrReleased)
	}
	assert.Equal(t, frames, want)
	checkBooks(t, svc)
}

func TestLeavingTheFramesOfThisProcessGivesBackWhatWasNotTaken(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p := createPool(t, s, PoolSpec{Name: "p", Kind: Host, MaxBytes: 1 << 20})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ch, err := s.CreateChannel(ChannelSpec{Name: "c", Pool: p.info.ID, Mode: WorkQueue, Capacity: 8, ThroughService: true})
	require.NoError(t, err)
	for range 4 {
		_, err := ch.Publish(ctx, allocate(t, s, p, 1), FrameOptions{})
		require.NoError(t, err)
	}
	for f, err := range ch.Frames(ctx, SubscribeOptions{}) {
		require.NoError(t, err)
		require.NoError(t, f.Requeue())
		require.NoError(t, f.Release())
		break
	}
	var seen []uint64
	for f, err := range ch.Frames(ctx, SubscribeOptions{Credit: 2}) {
		if err != nil {
			assert.ErrorIs(t, err, context.Canceled)
			assert.Nil(t, f)
			break
		}
		seen = append(seen, f.Seq)
		require.NoError(t, f.Release())
		if len(seen) == 4 {
			cancel()
		}
	}
	assert.Equal(t, []uint64{1, 2, 3, 4}, seen)
	for _, err := range ch.Frames(context.Background(), SubscribeOptions{Credit: MaxCredit + 1}) {
		assert.ErrorIs(t, err, ErrInvalid)
	}
	svc.mu.Lock()
	assert.Empty(t, slices.Collect(maps.Keys(svc.buffers)))
	svc.mu.Unlock()
}
