package shmchannel

import (
	"testing"

	"github.com/stretchr/testify/assert"
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
