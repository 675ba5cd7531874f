package bridge

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

// sent publishes a frame with a buffer of n bytes.
func sent(t *testing.T, p *Pool, ch *Channel, n uint64) {
	t.Helper()
	_, err := ch.Publish(context.Background(), allocate(t, p, n), mempool.FrameOptions{})
	require.NoError(t, err)
}

func TestAClientSaysWhatItHasPublishedAndReceived(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	assert.Equal(t, SessionStats{}, dial(t, path).SessionStats())
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Capacity: 2, Full: mempool.DropOldest})
	for range 2 {
		sent(t, p, ch, 16)
	}
	received := uint64(0)
	for f, err := range ch.Frames(t.Context(), mempool.SubscribeOptions{Oldest: true}) {
		require.NoError(t, err)
		require.NoError(t, f.Release())
		if received++; received == 1 { // of the frames after the first, the channel drops three
			for range 4 {
				sent(t, p, ch, 32)
			}
		}
		if f.Seq == 6 {
			break
		}
	}
	assert.EqualValues(t, 3, received)
	want := ChannelCounts{Name: "c", Published: 6, PublishedBytes: 2*16 + 4*32, Received: 3, ReceivedBytes: 16 + 2*32, Dropped: 3}
	st := c.SessionStats()
	require.Len(t, st.Channels, 1)
	require.NoError(t, c.Close())
	assert.Equal(t, st.Channels, c.SessionStats().Channels)
	st.Channels[0].RoomWaits, st.Channels[0].FrameWaits = Waits{}, Waits{} // the members may have waited until a file came
	assert.Equal(t, want, st.Channels[0], "also of a subscription that has ended")
}

func TestAWaitForAFrameInVainDoesNotCount(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Capacity: 1})
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		for _, err := range ch.Frames(ctx, mempool.SubscribeOptions{}) {
			failed <- err
		}
	}()
	eventually(t, func() bool { return len(c.SessionStats().Channels) == 1 })
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	assert.Zero(t, c.SessionStats().Channels[0].FrameWaits.Count)
}

func TestAClientSaysWhatMemoryItHasAskedFor(t *testing.T) {
	_, path := serve(t, server.Config{})
	p := createPool(t, dial(t, path), hostPool("p", 1<<20))
	l := allocate(t, p, 16)
	allocate(t, p, 32)
	st := p.client.SessionStats()
	assert.Equal(t, SessionStats{Leases: 2, Allocated: 2, AllocatedBytes: 48, MemoryWaits: Waits{2, st.MemoryWaits.Time}}, st)
	assert.Positive(t, st.MemoryWaits.Time)
	release(t, l)
	assert.Equal(t, 1, p.client.SessionStats().Leases)
	ch := makeChannel(t, p.client, p, mempool.ChannelSpec{Capacity: 1, Full: mempool.DropOldest})
	from := publisher(t, ch, 64)
	for n := range uint64(20) {
		require.NoError(t, sendLoan(t.Context(), from, n))
	}
	assert.EqualValues(t, 3, p.client.SessionStats().Allocated, "the arena of a publisher is one buffer")
}
