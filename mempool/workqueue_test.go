package mempool

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAFrameOfAQueueGoesToOneSubscriber(t *testing.T) {
	s := newStream(t, ChannelSpec{Mode: WorkQueue, Capacity: 4})
	s.send(2) // wait for somebody
	a, b := s.listen(2, SubscribeOptions{}), s.listen(2, SubscribeOptions{})
	assert.Equal(t, []int{1, 2}, a.got())
	s.send(4)
	assert.Equal(t, []int{3, 4}, b.got())
	assert.Empty(t, a.got())
	a.done(t, false)
	assert.Equal(t, []int{5}, a.got())
	checkBooks(t, s.svc)
}

func TestFramesOfAQueueComeBackInTheirPlace(t *testing.T) {
	s := newStream(t, ChannelSpec{Mode: WorkQueue, Capacity: 8})
	a := s.listen(3, SubscribeOptions{})
	s.send(5)
	assert.Equal(t, []int{1, 2, 3}, a.got())
	a.done(t, false) // 1 is done, 2 and 3 are not
	assert.Equal(t, []int{4}, a.got())
	a.done(t, true) // 2 is given back, and comes again
	assert.Equal(t, []int{2}, a.got())
	gone := make(chan struct{})
	settled := a.End(gone)
	b := s.listen(8, SubscribeOptions{})
	assert.Equal(t, []int{2, 3, 4, 5}, b.got())
	close(gone)
	<-settled
	require.NoError(t, b.Unsubscribe(b.sub))
	b.done(t, true)
	b.done(t, false)
	c := s.listen(8, SubscribeOptions{})
	assert.Equal(t, []int{2}, c.got(), "what is in hand after unsubscribing still counts")
	checkBooks(t, s.svc)
}

func TestAFullQueue(t *testing.T) {
	for policy, want := range map[FullPolicy]struct {
		err    error
		frames []int
		missed uint64
	}{
		Block:      {ErrTimeout, []int{1, 2}, 0},
		Fail:       {ErrLimit, []int{1, 2}, 0},
		DropOldest: {nil, []int{3, 4}, 2},
		Latest:     {nil, []int{4}, 3},
	} {
		t.Run(string(policy), func(t *testing.T) {
			s := newStream(t, ChannelSpec{Mode: WorkQueue, Capacity: 2, Full: policy})
			s.send(2)
			for range 2 {
				_, err := s.try(nil)
				assert.ErrorIs(t, err, want.err)
			}
			a := s.listen(8, SubscribeOptions{})
			assert.Equal(t, want.frames, a.got())
			assert.Equal(t, want.missed, a.inHand[0].Dropped)
			_, err := a.Subscribe(s.info.ID, SubscribeOptions{Full: Latest})
			assert.ErrorIs(t, err, ErrInvalid, "a queue has one policy")
			checkBooks(t, s.svc)
		})
	}
}

func TestTheErrorOfAFullQueueNamesWhoIsSlow(t *testing.T) {
	s := newStream(t, ChannelSpec{Mode: WorkQueue, Capacity: 1})
	s.send(1)
	_, err := s.try(nil)
	assert.ErrorContains(t, err, "nobody is subscribed")
	a := s.listen(1, SubscribeOptions{})
	s.send(1)
	_, err = s.try(nil)
	assert.ErrorContains(t, err, "the slowest is session")
	assert.ErrorContains(t, err, "pid")
	a.got()
	l := allocate(t, s.producer.Session, s.pool, 10)
	_, waits, err := s.producer.Send(s.info.ID, l.ID(), FrameOptions{})
	require.NoError(t, err)
	_, err = waits.Wait(t.Context(), time.Millisecond)
	require.ErrorIs(t, err, ErrTimeout)
	assert.Regexp(t, `^timed out: queue "\w+" is full: 1 frames wait, and the slowest is session \d+ \(pid \d+\), `+
		`which has not acknowledged 1 frames \(waited 1ms\)$`, err.Error(), "what is said is said once")
	release(t, l)
}

func TestAShutQueueEndsWhenEverythingIsAcknowledged(t *testing.T) {
	s := newStream(t, ChannelSpec{Mode: WorkQueue, Capacity: 4})
	a, b := s.listen(1, SubscribeOptions{}), s.listen(0, SubscribeOptions{})
	s.send(2)
	require.NoError(t, s.owner.ShutChannel(s.info.ID))
	assert.Equal(t, []int{1}, a.got())
	a.die()
	assert.Empty(t, b.ended())
	require.NoError(t, b.Credit(b.sub, 2))
	assert.Equal(t, []int{1, 2}, b.got())
	b.done(t, false)
	assert.Empty(t, b.ended(), "the last may still come back")
	b.done(t, false)
	assert.Len(t, b.ended(), 1)
	s.allGone()
}
