package shmchannel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEachFrameOfAQueueGoesToOneConsumer(t *testing.T) {
	r := newRig(t, Spec{Mode: Queue, Capacity: 4})
	p, a, b := r.producer(8), r.consumer(MemberSpec{}), r.consumer(MemberSpec{})
	for n := uint64(1); n < 500; n += 2 {
		p.publish()
		p.publish()
		f, g := a.take(), b.take()
		require.Equal(t, n, f.Number)
		require.Equal(t, n+1, g.Number)
		a.none()
		b.acknowledge(g)
		a.acknowledge(f)
	}
	a.none()
	assert.EqualValues(t, 501, r.host.sequencer.head.Load())
}

func TestAFrameThatIsGivenBackComesFirst(t *testing.T) {
	r := newRig(t, Spec{Mode: Queue, Capacity: 4})
	p, a, b := r.producer(8), r.consumer(MemberSpec{}), r.consumer(MemberSpec{})
	p.publish()
	p.publish()
	p.publish()
	f, g := a.take(), b.take()
	require.NoError(t, a.Requeue(f))
	a.release(f)
	require.ErrorIs(t, a.Requeue(f), ErrReleased)
	require.ErrorIs(t, a.Acknowledge(f), ErrReleased)
	again := b.take()
	assert.EqualValues(t, 1, again.Number)
	assert.Equal(t, f.Buffer, again.Buffer)
	b.acknowledge(g, again)
	assert.EqualValues(t, 3, a.take().Number)
}

func TestAFullQueue(t *testing.T) {
	for policy, want := range map[Policy]struct {
		err     error
		numbers []uint64
		missed  uint64
	}{
		Block:      {ErrFull, []uint64{1, 2, 3}, 0},
		Fail:       {ErrFull, []uint64{1, 2, 3}, 0},
		DropOldest: {nil, []uint64{2, 3, 4}, 1},
		Latest:     {nil, []uint64{4}, 3},
	} {
		t.Run(policy.String(), func(t *testing.T) {
			r := newRig(t, Spec{Mode: Queue, Capacity: 3, Policy: policy})
			p, c := r.producer(8), r.consumer(MemberSpec{})
			for range 3 {
				p.publish()
			}
			if want.err == nil {
				p.publish()
			} else {
				var full *FullError
				require.ErrorAs(t, p.publishError(), &full)
				assert.Equal(t, FullError{Number: 4, Waiting: 3, Consumers: 1}, *full)
			}
			missed := want.missed
			for _, n := range want.numbers {
				f := c.take()
				assert.Equal(t, n, f.Number)
				assert.Equal(t, missed, f.Missed)
				missed = 0
				if policy == Block && n == 1 {
					p.publish() // a frame that a consumer has taken does not count against the capacity
				}
				c.acknowledge(f)
			}
		})
	}
}

func TestAConsumerThatTakesWakesAProducerThatWaitsForRoom(t *testing.T) {
	r := newRig(t, Spec{Mode: Queue, Capacity: 1})
	p, c := r.producer(4), r.consumer(MemberSpec{})
	p.publish()
	done := make(chan error)
	go func() {
		_, err := p.Publish(within(t), p.next())
		done <- err
	}()
	require.Eventually(t, func() bool { return r.host.sequencer.freed.word.Load()&1 != 0 }, time.Minute, time.Millisecond)
	before := r.host.sequencer.freed.word.Load()
	c.take()
	require.NoError(t, <-done)
	assert.NotEqual(t, before, r.host.sequencer.freed.word.Load())
}

// While a consumer has a frame in hand, the frame's slot is not free. A later number that needs the same slot becomes void: no frame gets
// this number.
func TestAFrameThatIsKeptLongerThanTheRingGoesRound(t *testing.T) {
	r := newRig(t, Spec{Mode: Queue, Capacity: 4})
	p, slow, c := r.producer(16), r.consumer(MemberSpec{}), r.consumer(MemberSpec{})
	p.publish()
	kept := slow.take()
	seen := map[uint64]bool{}
	for range 400 {
		n := p.publish()
		f := c.take()
		require.Equal(t, n, f.Number)
		require.Equal(t, p.record.Buffer, f.Buffer)
		require.NotEqual(t, kept.Number%r.host.slots, n%r.host.slots)
		seen[n%r.host.slots] = true
		c.acknowledge(f)
	}
	assert.Len(t, seen, int(r.host.slots)-1, "every other slot was used")
	assert.EqualValues(t, 1, r.host.sequencer.head.Load())
	require.NoError(t, slow.Requeue(kept))
	slow.release(kept)
	p.publish()
	again := c.take()
	assert.EqualValues(t, 1, again.Number)
	assert.Equal(t, kept.Buffer, again.Buffer, "its record is still there")
	c.acknowledge(again, c.take())
	c.none()
	assert.Equal(t, r.host.Published()+1, r.host.sequencer.head.Load())
}

func TestAnOldFrameThatIsRequeuedComesBeforeNewerFramesInTheSlotsBeforeIt(t *testing.T) {
	for _, policy := range []Policy{Block, DropOldest} {
		t.Run(policy.String(), func(t *testing.T) {
			r := newRig(t, Spec{Mode: Queue, Capacity: 4, Policy: policy})
			p, slow, c := r.producer(16), r.consumer(MemberSpec{}), r.consumer(MemberSpec{})
			p.publish()
			kept := slow.take()
			for p.publish()%r.host.slots != r.host.slots-3 || r.host.Published() < 2*r.host.slots {
				c.acknowledge(c.take())
			}
			c.acknowledge(c.take())
			first := r.host.Published() + 1
			for range 4 { // the third is in the slot before the one of frame 1, and the fourth in the slot after it
				p.publish()
			}
			require.NoError(t, slow.Requeue(kept))
			slow.release(kept)
			if policy.blocks() {
				f := c.take()
				assert.EqualValues(t, 1, f.Number)
				c.acknowledge(f)
			} else {
				p.publish() // drops frames until the queue has a place
				f := c.take()
				assert.Equal(t, first+1, f.Number, "frames 1 and %d were the oldest", first)
				c.acknowledge(f)
			}
		})
	}
}

func TestAQueueOfWhichEverySlotIsInUseIsFull(t *testing.T) {
	for _, policy := range []Policy{Block, Fail, DropOldest, Latest} {
		t.Run(policy.String(), func(t *testing.T) {
			r := newRig(t, Spec{Mode: Queue, Capacity: 2, Policy: policy})
			p, c := r.producer(int(MinSlots)+8), r.consumer(MemberSpec{})
			frames := make([]*Frame, MinSlots)
			for i := range frames {
				p.publish()
				frames[i] = c.take()
			}
			tail := r.host.Published()
			for range 3 {
				require.ErrorIs(t, p.publishError(), ErrFull)
			}
			assert.Equal(t, tail, r.host.Published(), "no numbers are used up")
			c.acknowledge(frames[7])
			assert.EqualValues(t, tail+7+1, p.publish(), "its slot is that of frame 8")
			if policy.blocks() {
				require.ErrorIs(t, p.publishError(), ErrFull, "the last slot has a frame that waits")
				assert.Equal(t, p.record.Buffer-1, c.take().Buffer)
			} else {
				p.publish()
				assert.Equal(t, p.record.Buffer, c.take().Buffer, "it was dropped")
			}
		})
	}
}

// The frames that wait and the frames that consumers have claimed share the slots of the queue. No later frame overwrites a frame that
// waits.
func TestAFrameThatWaitsOutlivesVoids(t *testing.T) {
	r := newRig(t, Spec{Mode: Queue, Capacity: 32})
	p, c := r.producer(128), r.consumer(MemberSpec{})
	for range 40 {
		p.publish()
		c.take()
	}
	var waiting []uint64
	for {
		n, err := p.TryPublish(p.next())
		if err != nil {
			require.ErrorIs(t, err, ErrFull)
			break
		}
		p.free = p.free[:len(p.free)-1]
		waiting = append(waiting, n)
	}
	assert.Len(t, waiting, 24, "64 slots, of which 40 are in use")
	for _, n := range waiting {
		require.Equal(t, n, c.take().Number)
	}
	c.none()
}

func TestTheEndOfAQueueComesWhenEveryFrameIsAcknowledged(t *testing.T) {
	r := newRig(t, Spec{Mode: Queue, Capacity: 4})
	p, a, b := r.producer(8), r.consumer(MemberSpec{}), r.consumer(MemberSpec{})
	p.publish()
	p.publish()
	f := a.take()
	require.NoError(t, r.host.Close())
	require.ErrorIs(t, p.publishError(), ErrClosed)
	g := b.take()
	b.acknowledge(g)
	b.none()
	done := make(chan error)
	go func() { done <- b.Take(within(t), &Frame{}) }()
	require.Eventually(t, func() bool { return r.host.sequencer.published.word.Load()&1 != 0 }, time.Minute, time.Millisecond)
	a.acknowledge(f)
	require.ErrorIs(t, <-done, ErrEnded)
	require.ErrorIs(t, a.takeError(), ErrEnded)
}

func TestWhatADeadConsumerHadClaimedGoesToAnother(t *testing.T) {
	r := newRig(t, Spec{Mode: Queue, Capacity: 4})
	p, dead, c := r.producer(8), r.consumer(MemberSpec{}), r.consumer(MemberSpec{})
	p.publish()
	p.publish()
	p.publish()
	f, g := dead.take(), dead.take()
	dead.acknowledge(g)
	require.NoError(t, r.host.Expel(dead.member, Lost))
	require.ErrorIs(t, dead.takeError(), ErrLeft)
	assert.EqualValues(t, 3, c.take().Number, "its process may still run, and acknowledge")
	c.none()
	require.NoError(t, r.host.Gone(dead.member))
	again := c.take()
	assert.Equal(t, f.Number, again.Number)
	assert.Equal(t, f.Buffer, again.Buffer)
	require.ErrorIs(t, dead.Acknowledge(f), ErrReleased)
}

func TestAFrameSaysHowOftenConsumersGotIt(t *testing.T) {
	r := newRig(t, Spec{Mode: Queue, Capacity: 4})
	p, a, b := r.producer(8), r.consumer(MemberSpec{}), r.consumer(MemberSpec{})
	p.publish()
	f := a.take()
	assert.EqualValues(t, 1, f.Delivery)
	require.NoError(t, a.Requeue(f))
	a.release(f)
	assert.EqualValues(t, 2, a.take().Delivery)
	require.NoError(t, r.host.Gone(a.member))
	f = b.take()
	assert.EqualValues(t, 3, f.Delivery, "a consumer whose process is gone had it, too")
	b.acknowledge(f)
	for range r.host.slots {
		p.publish()
		f = b.take()
		assert.EqualValues(t, 1, f.Delivery)
		b.acknowledge(f)
	}
}

func TestAFrameThatWasDeliveredTooOftenIsAcknowledgedInsteadOfDelivered(t *testing.T) {
	r := newRig(t, Spec{Mode: Queue, Capacity: 4, MaxDeliveries: 2})
	p, a, b := r.producer(8), r.consumer(MemberSpec{}), r.consumer(MemberSpec{})
	p.publish()
	p.publish()
	for range 2 {
		f := a.take()
		require.EqualValues(t, 1, f.Number)
		require.NoError(t, a.Requeue(f))
		a.release(f)
	}
	var spent *UndeliverableError
	require.ErrorAs(t, b.takeError(), &spent)
	assert.Equal(t, UndeliverableError{Number: 1, Deliveries: 2}, *spent)
	f := a.take()
	assert.EqualValues(t, 2, f.Number)
	assert.EqualValues(t, 1, f.Delivery)
	a.acknowledge(f)
	p.reclaim()
	assert.Len(t, p.free, 8, "the memory of both frames came back")
	require.NoError(t, r.host.Close())
	require.ErrorIs(t, b.takeError(), ErrEnded)
}

func TestACountOfDeliveriesThatAMemberInventedFailsItsFrameOnly(t *testing.T) {
	for name, lie := range map[string]struct {
		word uint64
		want uint64 // 0: the frame is not delivered
	}{
		"of another frame":      {uint64(newDelivery(1+MinSlots, 9)), 1},
		"of an older frame":     {9, 1},
		"as often as allowed":   {uint64(newDelivery(1, 3)), 0},
		"the greatest":          {uint64(newDelivery(1, MaxDelivery)), 0},
		"less often":            {uint64(newDelivery(1, 2)), 3},
		"all bits of a number":  {^uint64(0), 1},
		"of a number above all": {uint64(newDelivery(MaxNumber, 3)), 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Spec{Mode: Queue, Capacity: 4, MaxDeliveries: 3})
			p, c := r.producer(8), r.consumer(MemberSpec{})
			p.publish()
			p.publish()
			r.host.sequencer.delivery(1).Store(lie.word)
			if lie.want == 0 {
				require.ErrorIs(t, c.takeError(), ErrUndeliverable)
			} else {
				assert.Equal(t, lie.want, c.take().Delivery)
			}
			assert.EqualValues(t, 2, c.take().Number)
		})
	}
}

func TestACountOfDeliveriesStopsAtItsGreatestValue(t *testing.T) {
	r := newRig(t, Spec{Mode: Queue, Capacity: 4})
	p, c := r.producer(8), r.consumer(MemberSpec{})
	p.publish()
	r.host.sequencer.delivery(1).Store(uint64(newDelivery(1, MaxDelivery)))
	for range 2 {
		f := c.take()
		assert.EqualValues(t, MaxDelivery, f.Delivery)
		require.NoError(t, c.Requeue(f))
		c.release(f)
	}
}
