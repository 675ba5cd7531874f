package mempool

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEverySubscriberOfABroadcastSeesEveryFrame(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 4})
	a, b := s.listen(8, SubscribeOptions{}), s.listen(8, SubscribeOptions{})
	l := allocate(t, s.producer.Session, s.pool, 16)
	ready := s.producer.ticket()
	tensor := Tensor{DType: Float32, Shape: []uint64{4}}
	before := time.Now()
	n, waits, err := s.producer.Send(s.info.ID, l.ID(), FrameOptions{Tensor: &tensor, Meta: map[string]string{"k": "v"}, Completion: Completion{Ready: &ready}})
	require.NoError(t, err)
	require.Nil(t, waits)
	assert.EqualValues(t, 1, n)
	assert.ErrorIs(t, l.Release(false), ErrReleased, "sending ends the lease")
	for _, sub := range []*listener{a, b} {
		require.Equal(t, []int{1}, sub.got())
		d := sub.inHand[0]
		assert.Equal(t, map[string]string{"k": "v"}, d.Meta)
		assert.Equal(t, tensor, d.Lease.Info().Tensor)
		assert.Equal(t, []Ticket{ready}, d.Lease.Info().Wait)
		assert.WithinRange(t, d.Time, before, time.Now())
		assert.False(t, d.Lease.Info().Write)
	}
	s.send(2)
	assert.Equal(t, []int{2, 3}, a.got())
	assert.Equal(t, []int{2, 3}, b.got())
	checkBooks(t, s.svc)
}

func TestABlockingSubscriberHoldsTheSenderBack(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 2})
	a := s.listen(8, SubscribeOptions{})
	fast := s.listen(8, SubscribeOptions{})
	s.send(2)
	fast.got()
	fast.done(t, false)
	fast.done(t, false)
	_, err := s.try(nil)
	require.ErrorIs(t, err, ErrTimeout)
	assert.ErrorContains(t, err, "slowest is session")
	assert.ErrorContains(t, err, "pid")

	got := make(chan uint64)
	l := allocate(t, s.producer.Session, s.pool, 10)
	_, waits, err := s.producer.Send(s.info.ID, l.ID(), FrameOptions{})
	require.NoError(t, err)
	go func() {
		n, err := waits.Wait(context.Background(), patience)
		assert.NoError(t, err)
		got <- n
	}()
	assert.Equal(t, []int{1, 2}, a.got())
	a.done(t, false)
	assert.EqualValues(t, 3, <-got)
	assert.Equal(t, []int{3}, a.got())
	a.die()
	require.NoError(t, fast.Unsubscribe(fast.sub))
	s.send(3)
	assert.Equal(t, []int{3}, fast.got(), "those that are gone hold nobody back")
}

func TestAFailingSubscriberFailsTheSend(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 1, Full: DropOldest})
	a := s.listen(8, SubscribeOptions{Full: Fail})
	s.send(1)
	_, err := s.try(nil)
	require.ErrorIs(t, err, ErrLimit)
	assert.ErrorContains(t, err, "pid")
	a.got()
	a.done(t, false)
	s.send(1)
}

func TestSlowSubscribersThatMissFramesHoldNobodyBack(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 3, Full: DropOldest})
	slow, latest := s.listen(1, SubscribeOptions{}), s.listen(1, SubscribeOptions{Full: Latest})
	s.send(10)
	assert.Equal(t, []int{1}, slow.got())
	assert.Equal(t, []int{1}, latest.got())
	require.NoError(t, slow.Credit(slow.sub, 2))
	require.NoError(t, latest.Credit(latest.sub, 2))
	assert.Equal(t, []int{8, 9}, slow.got())
	assert.Equal(t, []int{10}, latest.got())
	assert.EqualValues(t, 6, slow.inHand[1].Dropped)
	assert.EqualValues(t, 0, slow.inHand[2].Dropped)
	assert.EqualValues(t, 8, latest.inHand[1].Dropped)
	for _, d := range slow.inHand {
		assert.NoError(t, d.Lease.Release(false), "a dropped frame's memory lives as long as a lease on it")
	}
	checkBooks(t, s.svc)
}

func TestLateSubscribersBeginWithTheNewestOrTheOldest(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 3})
	s.send(5)
	assert.Equal(t, []int{5}, s.listen(9, SubscribeOptions{}).got())
	assert.Equal(t, []int{3, 4, 5}, s.listen(9, SubscribeOptions{Oldest: true}).got())
	empty := newStream(t, ChannelSpec{Capacity: 3})
	a := empty.listen(9, SubscribeOptions{Oldest: true})
	empty.send(1)
	assert.Equal(t, []int{1}, a.got())
}
