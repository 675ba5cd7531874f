package mempool

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var modes = []ChannelMode{Broadcast, WorkQueue}

func TestAnAcknowledgedFrameKeepsItsMemoryAndNothingElse(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			s := newStream(t, ChannelSpec{Mode: mode, Capacity: 2})
			a := s.listen(1, SubscribeOptions{})
			for i := range 5 { // more than the channel keeps, and than there is credit
				s.send(1)
				require.Equal(t, []int{i + 1}, a.got())
				require.NoError(t, a.Ack(a.inHand[i].Lease.ID()))
			}
			require.NoError(t, s.owner.ShutChannel(s.info.ID))
			assert.Len(t, a.ended(), 1, "nothing is unacknowledged")
			blocks := make(map[uint64]bool)
			for _, d := range a.inHand {
				blocks[d.Lease.Info().Block] = true
			}
			assert.Len(t, blocks, 5, "no block is used again while a lease is on it")
			for len(a.inHand) > 0 {
				a.done(t, false)
			}
			s.allGone()
		})
	}
}

func TestOnlyUnacknowledgedFramesOfADeadConsumerComeBack(t *testing.T) {
	s := newStream(t, ChannelSpec{Mode: WorkQueue, Capacity: 8})
	a := s.listen(3, SubscribeOptions{})
	s.send(3)
	require.Equal(t, []int{1, 2, 3}, a.got())
	require.NoError(t, a.Ack(a.inHand[1].Lease.ID()))
	a.die()
	b := s.listen(8, SubscribeOptions{})
	assert.Equal(t, []int{1, 3}, b.got())
	checkBooks(t, s.svc)
}

func TestARequeuedFrameGoesOnThoughItsLeaseLives(t *testing.T) {
	s := newStream(t, ChannelSpec{Mode: WorkQueue, Capacity: 8})
	b, a := s.listen(1, SubscribeOptions{}), s.listen(1, SubscribeOptions{})
	s.send(1)
	require.Equal(t, []int{1}, a.got())
	first := a.inHand[0].Lease
	require.NoError(t, a.Requeue(first.ID()))
	require.Equal(t, []int{1}, b.got(), "another has its turn")
	assert.Equal(t, first.Info().Buffer, b.inHand[0].Lease.Info().Buffer)
	require.NoError(t, s.owner.ShutChannel(s.info.ID))
	a.done(t, false)
	assert.Empty(t, a.ended(), "its release settles nothing any more")
	b.done(t, false)
	assert.Len(t, a.ended(), 1)
	assert.Len(t, b.ended(), 1)
	s.allGone()
}

func TestAFrameIsSettledOnce(t *testing.T) {
	s := newStream(t, ChannelSpec{Mode: WorkQueue, Capacity: 8})
	a := s.listen(2, SubscribeOptions{})
	s.send(2)
	a.got()
	acked, requeued := a.inHand[0].Lease.ID(), a.inHand[1].Lease.ID()
	require.NoError(t, a.Ack(acked))
	require.NoError(t, a.Unsubscribe(a.sub))
	require.NoError(t, a.Requeue(requeued), "the end of a subscription settles nothing")
	for _, id := range []uint64{acked, requeued} {
		assert.ErrorIs(t, a.Ack(id), ErrSettled)
		assert.ErrorIs(t, a.Requeue(id), ErrSettled)
	}
	a.done(t, true)
	b := s.listen(8, SubscribeOptions{})
	assert.Equal(t, []int{2}, b.got(), "an acknowledged frame does not come back, however its lease ends")
	assert.ErrorIs(t, a.Ack(acked), ErrReleased)
	assert.ErrorIs(t, a.Ack(b.inHand[0].Lease.ID()), ErrReleased, "another session's")
	assert.ErrorIs(t, a.Ack(99), ErrNotFound)
	l := allocate(t, a.Session, s.pool, 1)
	assert.ErrorIs(t, a.Ack(l.ID()), ErrInvalid, "it came with no frame")
	release(t, l)
	a.die()
	assert.ErrorIs(t, a.Ack(requeued), ErrClosed)

	broadcast := newStream(t, ChannelSpec{Capacity: 8})
	c := broadcast.listen(2, SubscribeOptions{})
	broadcast.send(1)
	c.got()
	err := c.Requeue(c.inHand[0].Lease.ID())
	require.ErrorIs(t, err, ErrInvalid)
	assert.ErrorContains(t, err, "broadcast")
	require.NoError(t, c.Ack(c.inHand[0].Lease.ID()), "nothing was settled")
}

func TestAConsumerThatReleasesNothingIsToldOfItsLimit(t *testing.T) {
	svc, s := limited(t, Limits{SessionLeases: 3})
	p := createPool(t, s, PoolSpec{Name: "p", Kind: Host, MaxBytes: 1 << 20})
	ch, err := s.CreateChannel(ChannelSpec{Name: "c", Pool: p.info.ID, Capacity: 8, ThroughService: true})
	require.NoError(t, err)
	consumer := open(t, svc)
	mine, err := consumer.OpenChannel(t.Context(), "c", 0)
	require.NoError(t, err)
	for range 4 {
		_, err := ch.Publish(t.Context(), allocate(t, s, p, 1), FrameOptions{})
		require.NoError(t, err)
	}
	var kept []*Frame
	for f, err := range mine.Frames(t.Context(), SubscribeOptions{Credit: 1, Oldest: true}) {
		if err != nil {
			require.ErrorIs(t, err, ErrLimit)
			assert.ErrorContains(t, err, "session-leases")
			break
		}
		kept = append(kept, f)
	}
	assert.Len(t, kept, 3)
	for _, f := range kept {
		require.NoError(t, f.Release())
	}
}

// Every loop over the frames of this process ends, in whatever order frames are released.
func TestLoopsInThisProcessEnd(t *testing.T) {
	const frames, consumers = 40, 3
	for _, mode := range modes {
		for name, loop := range map[string]func(f *Frame) (keep bool, err error){
			"release":       func(f *Frame) (bool, error) { return false, f.Release() },
			"keep":          func(*Frame) (bool, error) { return true, nil },
			"ack, then end": func(f *Frame) (bool, error) { return true, f.Ack() },
		} {
			for _, manual := range []bool{false, true} {
				if manual && name == "keep" {
					continue // it acknowledges nothing
				}
				t.Run(name+map[bool]string{true: ", manual, "}[manual]+string(mode), func(t *testing.T) {
					svc := newService(t)
					s := open(t, svc)
					p := createPool(t, s, PoolSpec{Name: "p", Kind: Host, MaxBytes: 1 << 20})
					ch, err := s.CreateChannel(ChannelSpec{Name: "c", Pool: p.info.ID, Mode: mode, Capacity: 4, ThroughService: true})
					require.NoError(t, err)
					seen := make(chan []uint64, consumers)
					for range consumers {
						sub, err := ch.subscribe(SubscribeOptions{Credit: 2})
						require.NoError(t, err)
						go func() {
							var numbers []uint64
							var kept []*Frame
							for f, err := range func(yield func(*Frame, error) bool) { sub.each(t.Context(), manual, yield) } {
								if !assert.NoError(t, err) {
									break
								}
								numbers = append(numbers, f.Seq)
								keep, err := loop(f)
								assert.NoError(t, err)
								if keep {
									kept = append(kept, f)
								}
							}
							for _, f := range kept {
								assert.NoError(t, f.Release())
							}
							seen <- numbers
						}()
					}
					for range frames {
						_, err := ch.Publish(t.Context(), allocate(t, s, p, 1), FrameOptions{})
						require.NoError(t, err)
					}
					require.NoError(t, ch.Shut())
					var all []uint64
					for range consumers {
						numbers := <-seen
						if mode == Broadcast {
							assert.Len(t, numbers, frames)
						}
						all = append(all, numbers...)
					}
					slices.Sort(all)
					assert.Len(t, slices.Compact(all), frames)
					checkBooks(t, svc)
				})
			}
		}
	}
}

func TestAFrameOfThisProcessThatALoopLeftGoesToAnother(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p := createPool(t, s, PoolSpec{Name: "p", Kind: Host, MaxBytes: 1 << 20})
	ch, err := s.CreateChannel(ChannelSpec{Name: "c", Pool: p.info.ID, Mode: WorkQueue, Capacity: 8, ThroughService: true})
	require.NoError(t, err)
	for range 2 {
		_, err := ch.Publish(t.Context(), allocate(t, s, p, 1), FrameOptions{})
		require.NoError(t, err)
	}
	leaver := open(t, svc)
	theirs, err := leaver.OpenChannel(t.Context(), "c", 0)
	require.NoError(t, err)
	var left *Frame
	for f, err := range theirs.Frames(t.Context(), SubscribeOptions{}) {
		require.NoError(t, err)
		if left = f; f.Seq == 2 {
			break
		}
	}
	<-leaver.End(nil)
	assert.ErrorIs(t, left.Ack(), ErrClosed)
	var seen []uint64
	for f, err := range ch.Frames(context.Background(), SubscribeOptions{}) {
		require.NoError(t, err)
		seen = append(seen, f.Seq)
		require.NoError(t, f.Requeue())
		require.ErrorIs(t, f.Ack(), ErrSettled)
		require.NoError(t, f.Release())
		break
	}
	assert.Equal(t, []uint64{2}, seen)
}
