package shmchannel

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheHostSeesHowFarConsumersOfABroadcastAreBehind(t *testing.T) {
	r := newRig(t, Spec{Capacity: 4})
	p, fast, slow := r.producer(8), r.consumer(MemberSpec{}), r.consumer(MemberSpec{})
	for range 3 {
		p.publish()
		fast.release(fast.take())
	}
	assert.EqualValues(t, 0, r.host.Behind(fast.member))
	assert.EqualValues(t, 3, r.host.Behind(slow.member))
	slow.release(slow.take())
	assert.EqualValues(t, 2, r.host.Behind(slow.member))
	assert.EqualValues(t, 3, r.host.Published())
	assert.Zero(t, r.host.Waiting(), "that is for queues")
}

func TestTheHostCountsTheFramesOfAQueueThatAreNotAcknowledged(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2, Mode: Queue})
	p, c := r.producer(8), r.consumer(MemberSpec{})
	for range 5 {
		p.publish()
		p.publish()
		assert.EqualValues(t, 2, r.host.Waiting())
		c.acknowledge(c.take())
		assert.EqualValues(t, 1, r.host.Waiting())
		c.acknowledge(c.take())
		assert.Zero(t, r.host.Waiting())
		assert.Len(t, p.back(), 2)
	}
	assert.Zero(t, r.host.Behind(c.member), "consumers of a queue share its frames")
}

func TestTheHostSeesWhichConsumerHasTheOldestFrameOfAQueue(t *testing.T) {
	r := newRig(t, Spec{Capacity: 4, Mode: Queue})
	p, slow, fast := r.producer(8), r.consumer(MemberSpec{}), r.consumer(MemberSpec{})
	assert.Nil(t, r.host.Oldest())
	p.publish()
	p.publish()
	assert.Nil(t, r.host.Oldest(), "no consumer has a frame")
	old := slow.take()
	for range 3 {
		fast.acknowledge(fast.take())
		p.publish()
		assert.Same(t, slow.member, r.host.Oldest())
	}
	young := fast.take()
	assert.Same(t, slow.member, r.host.Oldest())
	slow.acknowledge(old)
	assert.Same(t, fast.member, r.host.Oldest())
	fast.acknowledge(young)
	assert.Nil(t, r.host.Oldest())

	p.publish()
	taken := slow.take()
	claim := r.host.sequencer.claim(taken.Number)
	claim.Store(uint64(newClaim(taken.Number, 4095))) // a member has written nonsense
	assert.Nil(t, r.host.Oldest())
}

func TestTheHostCountsWhatConsumersOfABroadcastMiss(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2, Policy: DropOldest})
	p := r.producer(16)
	p.publish()
	late, newest, calm := r.consumer(MemberSpec{Policy: DropOldest}), r.consumer(MemberSpec{Policy: Latest}), r.consumer(MemberSpec{Policy: DropOldest})
	publish := func(n int) {
		for range n {
			p.publish()
			calm.release(calm.take())
		}
	}
	calm.release(calm.take())
	publish(4) // frames 1 to 5; the channel keeps frames 4 and 5
	assert.EqualValues(t, 3+3, r.host.Dropped(), "before the consumers notice")
	f, g := late.take(), newest.take()
	assert.EqualValues(t, 3, f.Missed)
	assert.EqualValues(t, 4, g.Missed)
	assert.EqualValues(t, 3+4, r.host.Dropped(), "one wanted the newest alone")
	assert.EqualValues(t, []uint64{3, 4, 0}, []uint64{r.host.Missed(late.member), r.host.Missed(newest.member), r.host.Missed(calm.member)})
	late.release(f)
	publish(5) // frames up to 10
	newest.release(g, newest.take())
	require.NoError(t, newest.Leave())
	require.NoError(t, r.host.Leave(newest.member))
	require.NoError(t, r.host.Gone(late.member))
	assert.Len(t, r.sweep(), 2)
	assert.EqualValues(t, 3+8, r.host.Dropped(), "of those that left, what they noticed")
}

func TestTheHostCountsTheFramesOfAQueueThatNobodyGot(t *testing.T) {
	for policy, want := range map[Policy]uint64{DropOldest: 3, Latest: 4} {
		r := newRig(t, Spec{Capacity: 2, Mode: Queue, Policy: policy})
		p, c := r.producer(8), r.consumer(MemberSpec{})
		for range 5 {
			p.publish()
		}
		assert.Equal(t, want, r.host.Dropped(), policy)
		assert.Equal(t, want, c.take().Missed)
		assert.Equal(t, want, r.host.Dropped(), "a consumer that is told of it does not begin the count anew")
	}
}

func TestAChannelIsUsedUpWhenTheNextFrameHasNoRoom(t *testing.T) {
	for name, spec := range map[string]Spec{"broadcast": {Capacity: 2, Policy: Fail}, "queue": {Capacity: 2, Mode: Queue, Policy: Fail}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, spec)
			p := r.producer(8)
			if spec.Mode == Broadcast {
				p.publish()
				assert.Zero(t, r.host.Used(), "nobody reads")
			}
			c := r.consumer(MemberSpec{Policy: Fail})
			if spec.Mode == Broadcast {
				c.release(c.take())
			}
			assert.Zero(t, r.host.Used())
			p.publish()
			p.publish()
			assert.EqualValues(t, 2, r.host.Used())
			require.ErrorIs(t, p.publishError(), ErrFull)
			f := c.take()
			if spec.Mode == Broadcast {
				assert.EqualValues(t, 2, r.host.Used(), "it is taken and not released")
				assert.EqualValues(t, 1, r.host.Behind(c.member))
				require.ErrorIs(t, p.publishError(), ErrFull)
				c.release(f)
			}
			assert.EqualValues(t, 1, r.host.Used())
			p.publish()
		})
	}
}

func TestAQueueIsUsedUpWhenConsumersHaveAllItsSlots(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2, Mode: Queue, Policy: Fail})
	p, c := r.producer(100), r.consumer(MemberSpec{})
	for range MinSlots {
		assert.Less(t, r.host.Used(), uint64(2))
		p.publish()
		c.take()
	}
	require.ErrorIs(t, p.publishError(), ErrFull)
	assert.EqualValues(t, 2, r.host.Used())
}

func TestCountsOfFramesNeverShrinkAndAreBoundedWhateverMembersWrite(t *testing.T) {
	for _, mode := range []Mode{Broadcast, Queue} {
		r := newRig(t, Spec{Capacity: 2, Mode: mode, Policy: DropOldest})
		p, c := r.producer(16), r.consumer(MemberSpec{Policy: DropOldest})
		for range 5 {
			p.publish()
		}
		before := r.host.Dropped()
		assert.EqualValues(t, 3, before)
		for _, lie := range []uint64{0, 1, 1<<64 - 1, 1 << 63, 4} {
			r.host.sequencer.drops.Store(lie)
			c.cursor.missed.Store(lie)
			c.cursor.next.Store(lie)
			now := r.host.Dropped()
			assert.GreaterOrEqual(t, now, before)
			assert.LessOrEqual(t, now, r.host.Published())
			assert.LessOrEqual(t, r.host.Used(), uint64(2))
			assert.LessOrEqual(t, r.host.Behind(c.member), r.host.Published())
			before = now
		}
		r.host.sequencer.tail.Store(0)
		assert.EqualValues(t, 5, r.host.Published())
		assert.Equal(t, before, r.host.Dropped())
		for range 3 { // members join, say that they missed everything, and leave
			r.host.sequencer.tail.Store(uint64(newTail(MaxNumber, 0, r.host.roster.version.Load())))
			liar := r.openConsumer(MemberSpec{Policy: DropOldest, Oldest: true})
			require.NoError(t, r.host.Join(liar.member))
			liar.cursor.missed.Store(1<<64 - 1)
			require.NoError(t, r.host.Gone(liar.member))
			r.sweep()
			assert.GreaterOrEqual(t, r.host.Dropped(), before)
			before = r.host.Dropped()
			assert.LessOrEqual(t, before, uint64(maxDropped))
		}
	}
}

func TestWhatAConsumerSaysOfItselfMakesNoWildNumbers(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2})
	p, c := r.producer(8), r.consumer(MemberSpec{})
	p.publish()
	for _, next := range []uint64{0, 7, 1 << 63} {
		c.member.cursor.next.Store(next)
		assert.Zero(t, r.host.Behind(c.member), next)
	}
}

func TestTheHostSeesWhichBlocksAreInAChannelOrInHand(t *testing.T) {
	for _, mode := range []Mode{Broadcast, Queue} {
		r := newRig(t, Spec{Capacity: 2, Mode: mode})
		p, c := r.producer(8), r.consumer(MemberSpec{})
		assert.Empty(t, r.host.Blocks(nil))
		p.publish()
		first := p.record.Block
		assert.Contains(t, r.host.Blocks(nil), first)
		f := c.take()
		assert.Contains(t, r.host.Blocks(nil), first, "the consumer has it in hand")
		if mode == Queue {
			c.acknowledge(f)
			p.back()
			assert.Empty(t, r.host.Blocks(nil))
			continue
		}
		c.release(f)
		for range 4 {
			p.publish()
			c.release(c.take())
		}
		assert.NotContains(t, r.host.Blocks(nil), first, "others have taken its place")
	}
}
