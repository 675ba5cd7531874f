package bridge

import (
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

// membersOf lists the members of a channel, without the times.
func membersOf(t *testing.T, c *Client, ch *Channel) (all []mempool.MemberInfo) {
	t.Helper()
	for _, m := range collect(t, c.Members(t.Context(), ch.Identity().ID)) {
		assert.Equal(t, mempool.Self().PID, m.PID)
		assert.Equal(t, mempool.Self().UID, m.UID)
		assert.NotEmpty(t, m.Program)
		assert.Equal(t, m.Last == 0, m.LastAt.IsZero(), "the channel still has the last frames")
		m.PID, m.UID, m.Program, m.LastAt, m.ID = 0, 0, "", time.Time{}, 0
		all = append(all, m)
	}
	return all
}

// taker returns a function that takes the next frame of a subscription.
func taker(t *testing.T, ch *Channel, o mempool.SubscribeOptions) func() *Frame {
	next, stop := iter.Pull2(ch.Frames(t.Context(), o))
	t.Cleanup(stop)
	return func() *Frame {
		f, err, ok := next()
		require.NoError(t, err)
		require.True(t, ok)
		return f
	}
}

func TestMembersOfABroadcastSayHowFarTheyAreAndWhoBlocks(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, other := dial(t, path), dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Name: "c", Capacity: 3})
	publish := func() {
		_, err := ch.Publish(t.Context(), allocate(t, p, 8), mempool.FrameOptions{})
		require.NoError(t, err)
	}
	publish()
	far, err := other.TryOpenChannel(t.Context(), "c")
	require.NoError(t, err)
	take := taker(t, far, mempool.SubscribeOptions{Oldest: true})
	require.NoError(t, take().Release())
	publish()
	publish()
	producer := mempool.MemberInfo{Session: c.Session(), Role: "producer", Frames: 3, Last: 3}
	consumer := mempool.MemberInfo{Session: other.Session(), Role: "consumer", Frames: 1, Last: 1, Lag: 2}
	assert.ElementsMatch(t, []mempool.MemberInfo{producer, consumer}, membersOf(t, c, ch))
	publish()
	producer.Frames, producer.Last, consumer.Lag = 4, 4, 3
	var since time.Time
	found := membersOf(t, c, ch)
	for i := range found {
		if found[i].Role == "consumer" {
			since, found[i].Since = found[i].Since, time.Time{}
		}
	}
	assert.False(t, since.IsZero(), "it leaves no room for another frame")
	assert.ElementsMatch(t, []mempool.MemberInfo{producer, consumer}, found)
	for _, err := range c.Members(t.Context(), 4711) {
		require.ErrorIs(t, err, ErrClosed)
	}
}

func TestMembersOfAQueueSayWhatTheyHaveInHand(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Capacity: 4, Mode: mempool.WorkQueue})
	for range 3 {
		_, err := ch.Publish(t.Context(), allocate(t, p, 8), mempool.FrameOptions{})
		require.NoError(t, err)
	}
	take := taker(t, ch, mempool.SubscribeOptions{ManualAck: true})
	first := take()
	take()
	consumer := mempool.MemberInfo{Session: c.Session(), Role: "consumer", Frames: 2, Last: 2, Lag: 2}
	assert.Contains(t, membersOf(t, c, ch), consumer)
	require.NoError(t, first.Ack())
	consumer.Lag = 1
	assert.Contains(t, membersOf(t, c, ch), consumer)
}
