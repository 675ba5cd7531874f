package shmchannel

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEveryConsumerGetsEveryFrame(t *testing.T) {
	r := newRig(t, Spec{Capacity: 4})
	p := r.producer(8)
	a, b := r.consumer(MemberSpec{}), r.consumer(MemberSpec{})
	for n := range uint64(500) { // much more than the number of slots
		require.Equal(t, n+1, p.publish())
		for _, c := range []*testConsumer{a, b} {
			f := c.take()
			require.Equal(t, n+1, f.Number)
			require.Equal(t, p.record.Buffer, f.Buffer)
			require.Equal(t, p.record.Block, f.Block)
			require.Zero(t, f.Missed)
			require.Equal(t, p.member.Peer, f.Producer)
			c.release(f)
		}
	}
	a.none()
}

func TestAFrameCarriesAllThatItsProducerSays(t *testing.T) {
	r := newRig(t, Spec{Capacity: 4})
	p, c := r.producer(8), r.consumer(MemberSpec{})
	meta, err := AppendMeta(nil, map[string]any{"camera": "left", "": "empty", "b": ""})
	require.NoError(t, err)
	event := make([]byte, EventBytes)
	for i := range event {
		event[i] = byte(i)
	}
	strided := &Description{Offset: 256, DType: "complex128", Shape: []uint64{1, 2, 3}, Strides: []int64{6, -3, 1}}
	var f Frame
	for i, want := range []Record{
		{Block: 1, Buffer: 2, Bytes: 3, Time: 4, Ready: Fence{Word: MaxWord, Value: MaxFenceValue}, Event: event, Meta: meta, Description: strided},
		{Block: 2, Bytes: 1, Time: 5, Meta: meta, Description: bytes64},
		{Block: 3, Bytes: 1, Time: 5, Event: event, Description: strided},
		{Block: 4, Bytes: 1, Time: 6, Description: &Description{DType: "bool", Shape: []uint64{}}},
		{Block: 5, Bytes: 1, Time: 6, Description: &Description{DType: "bool", Shape: make([]uint64, MaxDims), Strides: make([]int64, MaxDims)}},
	} {
		_, err := p.TryPublish(&want)
		require.NoError(t, err)
		ok, err := c.TryTake(&f)
		require.NoError(t, err)
		require.True(t, ok)
		assert.Equal(t, uint64(i+1), f.Number)
		assert.Equal(t, want.Description, f.Description)
		assert.Equal(t, len(want.Event), len(f.Event))
		assert.Equal(t, len(want.Meta), len(f.Meta))
		if len(want.Event) > 0 {
			assert.Equal(t, want.Event, f.Event)
		}
		if len(want.Meta) > 0 {
			assert.Equal(t, want.Meta, f.Meta)
		}
		want.Description, want.Event, want.Meta = f.Description, f.Event, f.Meta
		assert.Equal(t, want, f.Record)
		c.release(&f)
	}
	before := uint64(time.Now().UnixNano())
	p.record.Time = 0
	p.publish()
	assert.GreaterOrEqual(t, c.take().Time, before, "a record that says no time has that of its publication")
}

func TestMoreDescriptionsThanAreRemembered(t *testing.T) {
	r := newRig(t, Spec{Capacity: 4})
	p, c := r.producer(8), r.consumer(MemberSpec{})
	for i := range uint64(3000) {
		d := &Description{Base: i % 100, DType: "uint8", Shape: []uint64{i % 700, i % 7}}
		p.record.Description = d
		p.publish()
		f := c.take()
		require.Equal(t, d, f.Description)
		c.release(f)
	}
}

func TestDescriptionsThatAProducerHasGivenIds(t *testing.T) {
	r := newRig(t, Spec{Capacity: 4})
	p, q, c := r.producer(8), r.producer(8), r.consumer(MemberSpec{})
	var own []*Description
	for i := range uint64(200) {
		d, err := p.Describe(Description{Base: 512 * i, DType: "uint8", Shape: []uint64{512}})
		require.NoError(t, err)
		own = append(own, d)
	}
	seen := make(map[uint64]*Description)
	for i := range 3000 {
		from, d := p, own[i*7%200]
		if i%3 == 0 {
			from = q // for another producer, it is a description like any other
		}
		from.record.Description = d
		from.publish()
		f := c.take()
		require.Equal(t, []any{d.Base, d.DType, d.Shape}, []any{f.Description.Base, f.Description.DType, f.Description.Shape})
		if from == p {
			if old := seen[d.Base]; old != nil {
				require.Same(t, old, f.Description, "a consumer reads a description once")
			}
			seen[d.Base] = f.Description
		}
		c.release(f)
	}
	_, err := p.Describe(Description{DType: "uint8", Base: 1 << 63})
	require.ErrorIs(t, err, ErrInvalid)
}

func TestAFullBroadcast(t *testing.T) {
	for policy, want := range map[Policy]struct {
		err    error
		number uint64 // number of the frame that the slow consumer gets
		missed uint64
	}{
		Block:      {ErrFull, 1, 0},
		Fail:       {ErrFull, 1, 0},
		DropOldest: {nil, 2, 1},
		Latest:     {nil, 5, 4},
	} {
		t.Run(policy.String(), func(t *testing.T) {
			r := newRig(t, Spec{Capacity: 4})
			p := r.producer(10)
			slow := r.consumer(MemberSpec{Policy: policy, PID: 42})
			for range 4 {
				p.publish()
			}
			if want.err == nil {
				require.EqualValues(t, 5, p.publish())
			} else {
				var full *FullError
				require.ErrorAs(t, p.publishError(), &full)
				assert.Equal(t, FullError{Number: 5, Consumer: slow.member.Peer, Floor: 1}, *full)
			}
			f := slow.take()
			assert.Equal(t, want.number, f.Number)
			assert.Equal(t, want.missed, f.Missed)
			if want.err != nil {
				require.ErrorIs(t, p.publishError(), want.err, "a frame in hand keeps its place")
			}
			slow.release(f)
			p.publish()
		})
	}
}

func TestPublishWaitsForRoomWithBlockAndNotWithFail(t *testing.T) {
	for _, policy := range []Policy{Block, Fail} {
		t.Run(policy.String(), func(t *testing.T) {
			r := newRig(t, Spec{Capacity: 1})
			p, c := r.producer(4), r.consumer(MemberSpec{Policy: policy})
			p.publish()
			if policy == Fail {
				_, err := p.Publish(within(t), p.next())
				require.ErrorIs(t, err, ErrFull)
				return
			}
			done := make(chan error)
			go func() {
				_, err := p.Publish(within(t), p.next())
				done <- err
			}()
			require.Eventually(t, func() bool { return r.host.sequencer.waiting[p.member.Seat].Load() != 0 }, time.Minute, time.Millisecond)
			c.release(c.take())
			require.NoError(t, <-done)
			assert.Zero(t, r.host.sequencer.waiting[p.member.Seat].Load())
		})
	}
}

func TestPublishEndsWithTheContextAndSaysWhoIsBehind(t *testing.T) {
	r := newRig(t, Spec{Capacity: 1})
	p := r.producer(4)
	r.consumer(MemberSpec{})
	p.publish()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		_, err := p.Publish(ctx, p.next())
		done <- err
	}()
	require.Eventually(t, func() bool { return r.host.sequencer.freed.word.Load()&1 != 0 }, time.Minute, time.Millisecond)
	cancel()
	err := <-done
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, ErrFull)
	deadline, stop := context.WithTimeout(context.Background(), time.Millisecond)
	defer stop()
	_, err = p.Publish(deadline, p.next())
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestTakeWaitsForAFrameTheEndAndTheContext(t *testing.T) {
	r := newRig(t, Spec{Capacity: 4})
	p, c := r.producer(4), r.consumer(MemberSpec{})
	asleep := func() {
		require.Eventually(t, func() bool { return r.host.sequencer.published.word.Load()&1 != 0 }, time.Minute, time.Millisecond)
	}
	done := make(chan error)
	var f Frame
	take := func(ctx context.Context) { go func() { done <- c.Take(ctx, &f) }() }

	ctx, cancel := context.WithCancel(context.Background())
	take(ctx)
	asleep()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)

	take(within(t))
	asleep()
	p.publish()
	require.NoError(t, <-done)
	require.EqualValues(t, 1, f.Number)
	c.release(&f)

	take(within(t))
	asleep()
	require.NoError(t, r.host.Close())
	require.ErrorIs(t, <-done, ErrEnded)
	require.ErrorIs(t, p.publishError(), ErrClosed)
}

func TestClosingAMemberEndsItsCalls(t *testing.T) {
	r := newRig(t, Spec{Capacity: 1})
	p, c, idle := r.producer(4), r.consumer(MemberSpec{}), r.consumer(MemberSpec{})
	p.publish()
	idle.release(idle.take())
	done := make(chan error)
	go func() {
		_, err := p.Publish(context.Background(), p.next())
		done <- err
	}()
	go func() { done <- idle.Take(context.Background(), &Frame{}) }()
	require.Eventually(t, func() bool {
		return r.host.sequencer.freed.word.Load()&1 != 0 && r.host.sequencer.published.word.Load()&1 != 0
	}, time.Minute, time.Millisecond)
	require.NoError(t, p.Close())
	require.NoError(t, idle.Close())
	require.ErrorIs(t, <-done, ErrLeft)
	require.ErrorIs(t, <-done, ErrLeft)
	require.ErrorIs(t, c.Release(&Frame{}, Fence{}), ErrReleased)
	require.NoError(t, c.Close())
	require.ErrorIs(t, c.Release(&Frame{}, Fence{}), ErrLeft)
	require.NoError(t, c.Close(), "twice is once")
}

func TestSeveralProducersShareOneOrder(t *testing.T) {
	r := newRig(t, Spec{Capacity: 8})
	a, b, c := r.producer(16), r.producer(16), r.consumer(MemberSpec{})
	for i := range uint64(300) {
		p := []*testProducer{a, b}[i%3%2]
		n := p.publish()
		require.Equal(t, i+1, n)
		f := c.take()
		require.Equal(t, p.record.Buffer, f.Buffer)
		require.Equal(t, p.member.ID, f.Producer.ID)
		c.release(f)
	}
}

func TestFramesAreReleasedInAnyOrder(t *testing.T) {
	r := newRig(t, Spec{Capacity: 4})
	p, c := r.producer(8), r.consumer(MemberSpec{})
	for range 4 {
		p.publish()
	}
	f := []*Frame{c.take(), c.take(), c.take(), c.take()}
	c.release(f[1], f[2], f[3])
	assert.EqualValues(t, 1, c.member.cursor.floor.Load())
	require.ErrorIs(t, p.publishError(), ErrFull)
	c.release(f[0])
	assert.EqualValues(t, 5, c.member.cursor.floor.Load())
	for _, again := range f {
		require.ErrorIs(t, c.Release(again, Fence{}), ErrReleased)
	}
	require.ErrorIs(t, c.Release(&Hand{Number: 17, hold: -1}, Fence{}), ErrReleased)
	require.ErrorIs(t, c.Acknowledge(f[0]), ErrInvalid)
}

func TestAConsumerHasABoundedNumberOfFramesInHand(t *testing.T) {
	for _, policy := range []Policy{Block, DropOldest} {
		t.Run(policy.String(), func(t *testing.T) {
			r := newRig(t, Spec{Capacity: 300})
			p, c := r.producer(600), r.consumer(MemberSpec{Policy: policy})
			var first *Frame
			for i := range MaxInHand {
				p.publish()
				if f := c.take(); i == 0 {
					first = f
				}
			}
			p.publish()
			require.ErrorIs(t, c.takeError(), ErrInHand)
			c.release(first)
			require.EqualValues(t, MaxInHand+1, c.take().Number)
		})
	}
}

func TestAProducerNeedsNothingOfAConsumerWhoseSeatTheHostIsFreeing(t *testing.T) {
	r := newRig(t, Spec{Capacity: 4})
	p := r.producer(4)
	late, err := r.host.Add(MemberSpec{Role: ConsumerRole})
	require.NoError(t, err)
	require.NoError(t, r.host.Join(late))
	r.host.roster.seat(late).id.Store(0) // the producer has loaded the state before
	p.publish()
	p.reclaim()
}

func TestAMemberWhoseFileHasNotArrivedIsNamed(t *testing.T) {
	r := newRig(t, Spec{Capacity: 4})
	p, c := r.producer(4), r.consumer(MemberSpec{})
	late, err := r.host.Add(MemberSpec{Role: ConsumerRole})
	require.NoError(t, err)
	require.NoError(t, r.host.Join(late))
	var unknown *UnknownMemberError
	require.ErrorAs(t, p.publishError(), &unknown)
	assert.Equal(t, UnknownMemberError{ConsumerRole, late.Seat, late.ID}, *unknown)
	_, err = p.Reclaim()
	require.ErrorIs(t, err, ErrUnknownMember)
	require.NoError(t, p.AddCursor(late.Seat, late.ID, late.File()))
	p.publish()
	c.release(c.take())

	other, err := r.host.Add(MemberSpec{Role: ProducerRole})
	require.NoError(t, err)
	q, err := OpenProducer(r.config(other))
	require.NoError(t, err)
	defer q.Close()
	require.NoError(t, r.host.Join(other))
	for _, m := range r.host.Members(nil, ConsumerRole) {
		require.NoError(t, q.AddCursor(m.Seat, m.ID, m.File()))
	}
	_, err = q.TryPublish(&Record{Block: 1, Description: bytes64})
	require.NoError(t, err)
	require.ErrorAs(t, c.takeError(), &unknown)
	assert.Equal(t, UnknownMemberError{ProducerRole, other.Seat, other.ID}, *unknown)
	require.NoError(t, c.AddTrack(other.Seat, other.ID, other.File()))
	require.EqualValues(t, 2, c.take().Number)
}

func TestNothingIsAllocatedForAFrame(t *testing.T) {
	for name, spec := range map[string]Spec{"broadcast": {Capacity: 4}, "queue": {Mode: Queue, Capacity: 4}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, spec)
			p, c := r.producer(16), r.consumer(MemberSpec{Policy: DropOldest})
			meta, err := AppendMeta(nil, map[string]any{"a": "b"})
			require.NoError(t, err)
			p.record.Meta = meta
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var f Frame
			var frames int
			assert.Zero(t, testing.AllocsPerRun(2000, func() {
				p.mustPublish()
				if err := c.Take(ctx, &f); err != nil {
					panic(err)
				}
				if spec.Mode == Queue {
					_ = c.Acknowledge(&f)
				}
				_ = c.Release(&f, Fence{})
				frames++
			}))
			assert.Equal(t, 2001, frames)
		})
	}
}

func TestAPassedFrameNeedsNoPlaceAndStaysInHand(t *testing.T) {
	for _, policy := range []Policy{Block, Fail, DropOldest, Latest} {
		t.Run(policy.String(), func(t *testing.T) {
			r := newRig(t, Spec{Capacity: 1})
			p, c := r.producer(MaxInHand+2), r.consumer(MemberSpec{Policy: policy})
			var frames []*Frame
			for n := range uint64(MaxInHand) {
				p.publish()
				f := c.take()
				require.Equal(t, n+1, f.Number)
				require.NoError(t, c.Pass(f))
				require.NoError(t, c.Pass(f), "twice is once")
				frames = append(frames, f)
			}
			p.publish()
			require.ErrorIs(t, c.takeError(), ErrInHand)
			p.reclaim()
			require.Len(t, p.free, 1, "those in hand do not come back")
			c.release(frames[17])
			p.reclaim()
			require.Contains(t, p.free, frames[17].Block)
			require.ErrorIs(t, c.Pass(frames[17]), ErrReleased)
			last := c.take()
			require.EqualValues(t, p.last, last.Number)
			frames[17] = last
			require.NoError(t, c.Leave())
			require.NoError(t, r.host.Leave(c.member))
			c.release(frames...)
			for _, f := range frames {
				require.ErrorIs(t, c.Release(f, Fence{}), ErrReleased)
			}
			left, err := r.host.Sweep(nil, func(Fence) bool { return true })
			require.NoError(t, err)
			require.Len(t, left, 1)
		})
	}
}

func TestAFrameOfAQueueIsNotPassed(t *testing.T) {
	r := newRig(t, Spec{Mode: Queue, Capacity: 1})
	p, c := r.producer(2), r.consumer(MemberSpec{})
	p.publish()
	f := c.take()
	require.ErrorIs(t, c.Pass(f), ErrInvalid)
	c.acknowledge(f)
}
