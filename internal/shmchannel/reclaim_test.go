package shmchannel

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// back returns the numbers of the frames whose blocks come back.
func (p *testProducer) back() []uint64 {
	p.t.Helper()
	returned, err := p.Reclaim()
	require.NoError(p.t, err)
	var numbers []uint64
	for _, b := range returned {
		p.free = append(p.free, b.Block)
		numbers = append(numbers, b.Number)
	}
	slices.Sort(numbers)
	return numbers
}

func TestABlockOfABroadcastComesBackWhenItsFrameIsNeitherKeptNorInHand(t *testing.T) {
	for _, policy := range []Policy{Block, Fail, DropOldest, Latest} {
		t.Run(policy.String(), func(t *testing.T) {
			r := newRig(t, Spec{Capacity: 2})
			p, c := r.producer(8), r.consumer(MemberSpec{Policy: policy})
			p.publish()
			f := c.take()
			p.publish()
			g := c.take()
			c.release(g)
			assert.Empty(t, p.back(), "both are kept")
			if policy.blocks() {
				require.ErrorIs(t, p.publishError(), ErrFull)
				c.release(f)
				p.publish()
				assert.Equal(t, []uint64{1}, p.back())
				return
			}
			for range 4 {
				p.publish()
			}
			assert.Equal(t, []uint64{2, 3, 4}, p.back())
			assert.Equal(t, 3, p.Outstanding())
			c.release(f)
			assert.Equal(t, []uint64{1}, p.back())
		})
	}
}

func TestABlockStaysAwayWhileAConsumerThatJoinedDuringTheReclaimHasItInHand(t *testing.T) {
	for _, timeline := range []uint64{0, 7} {
		r := newRig(t, Spec{Mode: Queue, Capacity: 4})
		p := r.producer(2)
		p.publish()
		tail := p.sequencer.loadTail()
		require.NoError(t, p.refreshView(tail)) // the first part of Reclaim
		c := r.consumer(MemberSpec{Timeline: timeline})
		f := c.take()
		require.NoError(t, c.Acknowledge(&f.Hand))
		back, err := p.sortReturned(tail)
		require.NoError(t, err)
		assert.Empty(t, back, "the consumer has the frame in hand")
		c.release(f)
		assert.Equal(t, []uint64{1}, p.back())
	}
}

func TestABlockOfAQueueComesBackWhenItsFrameIsAcknowledgedAndReleased(t *testing.T) {
	r := newRig(t, Spec{Mode: Queue, Capacity: 4})
	p, c := r.producer(8), r.consumer(MemberSpec{})
	for range 4 {
		p.publish()
	}
	a, b, d := c.take(), c.take(), c.take()
	assert.Empty(t, p.back())
	require.NoError(t, c.Acknowledge(b))
	assert.Empty(t, p.back(), "it is not released")
	c.release(b)
	c.release(d)
	assert.Equal(t, []uint64{2}, p.back(), "the third is not acknowledged")
	c.acknowledge(a)
	require.NoError(t, c.Acknowledge(d))
	assert.Equal(t, []uint64{1, 3}, p.back())
	assert.Equal(t, 1, p.Outstanding())
}

func TestFramesThatAQueueDropsComeBack(t *testing.T) {
	r := newRig(t, Spec{Mode: Queue, Capacity: 2, Policy: DropOldest})
	p := r.producer(8)
	for range 5 {
		p.publish()
	}
	assert.Equal(t, []uint64{1, 2, 3}, p.back())
}

func TestABlockComesBackWithTheFencesOfItsConsumers(t *testing.T) {
	r := newRig(t, Spec{Capacity: 1})
	p := r.producer(4)
	a, b := r.consumer(MemberSpec{Timeline: 7}), r.consumer(MemberSpec{Timeline: 9, Policy: DropOldest})
	p.publish()
	f, g := a.take(), b.take()
	require.NoError(t, a.Release(f, Fence{Word: 3, Value: 30}))
	require.NoError(t, b.Release(g, Fence{Word: 4, Value: 40}))
	p.publish()
	back, err := p.Reclaim()
	require.NoError(t, err)
	require.Len(t, back, 1)
	assert.Equal(t, []Fence{{7, 3, 30}, {9, 4, 40}}, back[0].Fences)
	a.release(a.take())
	b.release(b.take())
	p.publish()
	back, err = p.Reclaim()
	require.NoError(t, err)
	require.Len(t, back, 1)
	assert.Empty(t, back[0].Fences, "nobody's work goes on")
	require.ErrorIs(t, a.Release(a.take(), Fence{Word: MaxWord + 1, Value: 1}), ErrInvalid)
}

// This test releases two frames whose numbers differ by the number of slots. So both frames have the same slot, and the consumer stores
// both fences in the same entry.
func TestAFenceIsOverwrittenOnlyByOneThatImpliesIt(t *testing.T) {
	reached := false
	r := newRig(t, Spec{Capacity: 1})
	r.reached = func(fence Fence) bool {
		assert.Equal(t, Fence{Word: 1, Value: 5}, fence)
		return reached
	}
	busy, idle := r.producer(4), r.producer(4)
	c := r.consumer(MemberSpec{Timeline: 1, Policy: DropOldest})
	idle.publish()
	require.NoError(t, c.Release(c.take(), Fence{Word: 1, Value: 5}))
	for range r.host.slots - 1 {
		busy.publish()
		c.release(c.take())
	}
	busy.publish()
	f := c.take()
	require.Equal(t, 1+r.host.slots, f.Number)
	require.ErrorIs(t, c.Release(f, Fence{Word: 2, Value: 1}), ErrUnfinished)
	require.ErrorIs(t, c.Release(f, Fence{Word: 1, Value: 4}), ErrUnfinished)
	require.NoError(t, c.Release(f, Fence{Word: 1, Value: 6}))
	back, err := idle.Reclaim()
	require.NoError(t, err)
	require.Len(t, back, 1)
	assert.Equal(t, []Fence{{1, 1, 6}}, back[0].Fences, "which implies its own")

	// Now the consumer releases the younger of two such frames first. The fence of the younger frame is reached, so the fence of the older
	// frame may replace it, although the two fences have different words.
	busy.publish()
	old := c.take()
	for range r.host.slots - 1 {
		busy.publish()
		c.release(c.take())
	}
	busy.publish()
	young := c.take()
	require.Equal(t, old.Number+r.host.slots, young.Number)
	require.NoError(t, c.Release(young, Fence{Word: 1, Value: 5}))
	reached = true
	require.NoError(t, c.Release(old, Fence{Word: 2, Value: 1}))
	number, fence, ok := c.cursor.doneAt(old.Number).load()
	require.True(t, ok)
	assert.Equal(t, young.Number, number)
	assert.Equal(t, Fence{Word: 2, Value: 1}, fence)
	require.NoError(t, busy.Close())
}

func TestABlockDoesNotComeBackWhileAFenceIsBeingWritten(t *testing.T) {
	r := newRig(t, Spec{Capacity: 1})
	p, c := r.producer(4), r.consumer(MemberSpec{Timeline: 7})
	p.publish()
	require.NoError(t, c.Release(c.take(), Fence{Word: 3, Value: 30}))
	d := c.cursor.doneAt(1)
	d.number.Store(0)
	p.publish()
	assert.Empty(t, p.back())
	d.number.Store(1 + r.host.slots)
	assert.Equal(t, []uint64{1}, p.back())
}

func TestAwaitReclaimWaitsForABlock(t *testing.T) {
	r := newRig(t, Spec{Capacity: 1})
	p, c := r.producer(4), r.consumer(MemberSpec{Policy: DropOldest})
	back, err := awaitReclaim(context.Background(), p)
	require.NoError(t, err)
	require.Empty(t, back, "the channel has none")
	p.publish()
	f := c.take()
	p.publish()
	done := make(chan error)
	go func() {
		back, err := awaitReclaim(within(t), p)
		assert.Len(t, back, 1)
		done <- err
	}()
	require.Eventually(t, func() bool { return r.host.sequencer.freed.word.Load()&1 != 0 }, time.Minute, time.Millisecond)
	c.release(f)
	require.NoError(t, <-done)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err = awaitReclaim(ctx, p)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestAfterTheEndBlocksComeBackAsTheyAreReleased(t *testing.T) {
	r := newRig(t, Spec{Capacity: 4})
	p, a, b := r.producer(8), r.consumer(MemberSpec{}), r.consumer(MemberSpec{Policy: DropOldest})
	for range 3 {
		p.publish()
	}
	require.NoError(t, r.host.Close())
	assert.Empty(t, p.back())
	f, g := a.take(), b.take()
	assert.Empty(t, p.back())
	a.release(f)
	assert.Empty(t, p.back(), "the other holds it")
	b.release(g)
	assert.Equal(t, []uint64{1}, p.back())
	a.release(a.take())
	assert.Empty(t, p.back(), "the other will get it")
	require.NoError(t, b.Leave())
	require.NoError(t, r.host.Leave(b.member))
	assert.Equal(t, []uint64{2}, p.back())
}

func TestADestroyedChannelGivesBackWhatIsNotInHand(t *testing.T) {
	for name, spec := range map[string]Spec{"broadcast": {Capacity: 4}, "queue": {Mode: Queue, Capacity: 4}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, spec)
			p, a, b := r.producer(8), r.consumer(MemberSpec{}), r.consumer(MemberSpec{Policy: Latest})
			for range 4 {
				p.publish()
			}
			f, g := a.take(), b.take()
			want := []uint64{2, 3}
			if spec.Mode == Queue {
				want = []uint64{3, 4}
			}
			r.host.Destroy()
			assert.Equal(t, want, p.back())
			require.ErrorIs(t, a.takeError(), ErrDestroyed)
			require.ErrorIs(t, p.publishError(), ErrDestroyed)
			a.release(f)
			assert.Equal(t, []uint64{f.Number}, p.back())
			b.release(g)
			assert.Equal(t, []uint64{g.Number}, p.back())
			assert.Zero(t, p.Outstanding())
		})
	}
}

// asleep sets bit 0 of the futex `freed`, as a member does before it sleeps. The returned function `woken` reports whether a member has
// called wake or advance on this futex after the call of asleep.
func asleep(r *rig) (woken func() bool) {
	f := &r.host.sequencer.freed
	v := f.arm()
	return func() bool { return f.word.Load() != v }
}

func TestAHoldThatIsClearedWithoutAFrameWakesProducers(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2})
	p, c := r.producer(8), r.consumer(MemberSpec{Policy: DropOldest})
	p.publish()
	p.track.records[1].seq.Store(0) // the record is now wrong, so that the consumer cannot take the frame
	woken := asleep(r)
	require.ErrorIs(t, c.takeError(), ErrFrame)
	assert.True(t, woken())
}

func TestAFrameThatPushesOutAnothersWakesItsProducer(t *testing.T) {
	r := newRig(t, Spec{Capacity: 1})
	p := r.producer(8)
	p.publish()
	woken := asleep(r)
	p.publish()
	assert.False(t, woken(), "it is the only one")
	q := r.producer(8)
	woken = asleep(r)
	q.publish()
	assert.True(t, woken())
}

// After a channel is closed, the version in its tail does not change any more. So a producer must read the version in the roster.
func TestAfterTheEndEveryChangeOfTheRosterCounts(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2})
	p, c := r.producer(8), r.consumer(MemberSpec{})
	p.publish()
	require.NoError(t, r.host.Close())
	assert.Empty(t, p.back())
	require.NoError(t, r.host.Leave(c.member))
	p.view.version = r.host.roster.version.Load() - 1
	tail := r.host.sequencer.loadTail()
	r.host.sequencer.tail.Store(uint64(newTail(tail.number(), tail.seat(), p.view.version)))
	assert.Equal(t, []uint64{1}, p.back())
}
