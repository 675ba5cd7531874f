package bridge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestAPoolOfOneBlockMoreThanTheChannelKeepsIsEnough(t *testing.T) {
	const capacity = 3
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		t.Run(string(mode), func(t *testing.T) {
			s := pair(t, hostPool("p", (capacity+1)<<16), mempool.ChannelSpec{Mode: mode, Capacity: capacity})
			from := s.follow(t, mempool.SubscribeOptions{})
			var sender sync.WaitGroup
			const frames = 300
			sender.Go(func() {
				for n := range uint64(frames) {
					if !assert.NoError(t, sendFrame(context.Background(), s.pool, s.from, n, 1<<16, mempool.FrameOptions{})) {
						return
					}
				}
			})
			defer sender.Wait()
			for n := range uint64(frames) {
				require.NoError(t, receive(t, from, n).Release())
			}
		})
	}
}

func TestWhatAnIdleProducerKeepsIsThereForOthers(t *testing.T) {
	s := pair(t, hostPool("p", 8<<16), mempool.ChannelSpec{Capacity: 3})
	from := s.follow(t, mempool.SubscribeOptions{})
	for n := range uint64(12) {
		s.send(t, n)
		require.NoError(t, receive(t, from, n).Release())
	}
	other, err := s.consumer.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	for range 8 - 3 { // the channel keeps three blocks
		l, err := other.Allocate(t.Context(), mempool.Bytes(1<<16))
		require.NoError(t, err)
		defer l.Release(false)
	}
}

func TestAnIdleProducerReleasesWhatItKeeps(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 3})
	from := s.follow(t, mempool.SubscribeOptions{})
	for n := range uint64(12) {
		s.send(t, n)
		require.NoError(t, receive(t, from, n).Release())
	}
	eventually(t, func() bool { return s.svc.Stats().Buffers == 3 })
	require.NoError(t, s.from.Close(t.Context()))
	f, err := from.next(t.Context())
	require.NoError(t, err)
	assert.Nil(t, f)
	from.Leave()
	eventually(t, func() bool { return s.svc.Stats().Buffers == 0 })
	eventually(t, func() bool {
		members, producers, _ := s.producer.streams.Size()
		return members+producers == 0
	})
	again := makeChannel(t, s.producer, s.pool, mempool.ChannelSpec{Capacity: 3})
	require.NoError(t, sendFrame(t.Context(), s.pool, again, 1, 1<<16, mempool.FrameOptions{}), "a channel of the same name")
	err = sendFrame(t.Context(), s.pool, s.from, 1, 1<<16, mempool.FrameOptions{})
	assert.ErrorIs(t, err, ErrClosed)
}

// readerWork is work of the consumer on frames that the consumer has released already.
type readerWork struct {
	clock *Clock
	word  uint64
}

func (s *channelPair) work(t *testing.T) (w readerWork) {
	t.Helper()
	var err error
	w.clock, err = s.consumer.Clock(t.Context())
	require.NoError(t, err)
	w.word, err = w.clock.Word(t.Context())
	require.NoError(t, err)
	return w
}

// begin releases a frame. The work on the frame ends when the returned fence is reached.
func (w readerWork) begin(t *testing.T, f *Frame) mempool.Fence {
	t.Helper()
	end := w.clock.Next(w.word)
	require.NoError(t, f.Lease.held.EndLocked(false, end))
	f.Lease.held.Forget()
	return end
}

// unfinished makes a consumer release a frame before the consumer's work on the frame has ended. When unfinished returns, the consumer has
// given the frame's block back to the producer, and the channel has another frame. The function `finish` ends the consumer's work.
func unfinished(t *testing.T, blocks uint64) (s *channelPair, finish func()) {
	s = pair(t, hostPool("p", blocks<<16), mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	s.send(t, 1)
	f := receive(t, from, 1)
	w := s.work(t)
	busy := w.begin(t, f)
	s.send(t, 2)
	return s, sync.OnceFunc(func() { assert.NoError(t, w.clock.Reach(busy)) })
}

func TestALeaseThatIsAllocatedAgainWaitsForEarlierUsersOfItsMemory(t *testing.T) {
	s := pair(t, hostPool("p", 1<<16), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	w := s.work(t)
	other, err := s.consumer.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	busy := w.clock.Next(w.word)
	earlier := allocate(t, other, 1<<16)
	require.NoError(t, earlier.held.EndLocked(false, busy)) // work on the memory goes on until busy
	earlier.held.Forget()
	eventually(t, func() bool { return s.svc.Stats().Leases == 0 })
	first := allocate(t, s.pool, 1<<16)
	require.Equal(t, []mempool.Fence{busy}, first.held.Info().Wait)
	_, err = s.from.Publish(t.Context(), first, mempool.FrameOptions{})
	require.NoError(t, err)
	f, err := from.next(t.Context())
	require.NoError(t, err)
	require.NoError(t, f.Release())
	reach := time.AfterFunc(100*time.Millisecond, func() { assert.NoError(t, w.clock.Reach(busy)) })
	defer reach.Stop()
	again, err := s.pool.Allocate(t.Context(), mempool.Bytes(1<<16))
	require.NoError(t, err)
	require.NoError(t, again.CopyFrom(t.Context(), 0, make([]byte, 8)))
	assert.True(t, w.clock.Page().Passed(busy.Word, busy.Value))
	release(t, again)
}

func producers(c *Client) int {
	_, producers, _ := c.streams.Size()
	return producers
}

func TestClosedChannelsAreForgottenWhileAnotherStreamGoesOn(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	for range 3 {
		ch := makeChannel(t, s.producer, s.pool, mempool.ChannelSpec{Name: "short", Capacity: 4})
		require.NoError(t, sendFrame(t.Context(), s.pool, ch, 0, 1<<16, mempool.FrameOptions{}))
		require.NoError(t, ch.Close(t.Context()))
	}
	for n := uint64(0); producers(s.producer) > 1; n++ {
		s.send(t, n)
		require.NoError(t, receive(t, from, n).Release())
	}
}

func TestMemoryIsReleasedWhenTheReadersOfTheLastFrameAreDone(t *testing.T) {
	s, finish := unfinished(t, 2)
	defer finish()
	other, err := s.consumer.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	_, err = other.TryAllocate(t.Context(), mempool.Bytes(1<<16))
	require.ErrorIs(t, err, ErrLimit)
	asked := allocating(context.Background(), other)
	finish()
	require.NoError(t, <-asked)
}

func TestMemoryIsUsedAgainWhenTheTimelineOfItsReaderIsGone(t *testing.T) {
	s, finish := unfinished(t, 2)
	clock, err := s.consumer.Clock(t.Context())
	require.NoError(t, err)
	id := clock.Timeline()
	finish()
	require.NoError(t, s.consumer.Close())
	eventually(t, func() bool {
		return errors.Is(s.producer.session.Call(t.Context(), &wire.GetTimeline{Timeline: id}, &wire.TimelineReply{}), ErrStale)
	})
	other, err := dial(t, s.path).TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	require.NoError(t, <-allocating(t.Context(), other))
}

func TestReadersSeeTheTensorThatWasPublishedAfterOtherFrames(t *testing.T) {
	for _, kind := range []mempool.Kind{mempool.Host, mempool.Device, mempool.VMM, mempool.Pinned} {
		for name, again := range map[string]*mempool.Tensor{"the tensor of the lease": nil, "another tensor": {DType: mempool.Int64, Shape: []uint64{3}}} {
			t.Run(string(kind)+"/"+name, func(t *testing.T) {
				if err := kind.Probe(""); err != nil {
					t.Skipf("%v (without a GPU, `make simcuda` and tests/simcuda/machine run this)", err)
				}
				readersSeeTheTensorAfterOtherFrames(t, kind, again)
			})
		}
	}
}

// readersSeeTheTensorAfterOtherFrames sends frames in a pool of a kind, allocates a lease in memory that came back, and publishes the lease,
// with the tensor `again` unless it is nil.
func readersSeeTheTensorAfterOtherFrames(t *testing.T, kind mempool.Kind, again *mempool.Tensor) {
	t.Helper()
	frame, other := mempool.Tensor{DType: mempool.Float32, Shape: []uint64{6}}, mempool.Tensor{DType: mempool.Int32, Shape: []uint64{2, 3}}
	s := pair(t, mempool.PoolSpec{Name: "p", Kind: kind, MaxBytes: 16 << 20}, mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	for range 3 {
		l, err := s.pool.TryAllocate(t.Context(), frame)
		require.NoError(t, err)
		_, err = s.from.Publish(t.Context(), l, mempool.FrameOptions{})
		require.NoError(t, err)
		f, err := from.next(t.Context())
		require.NoError(t, err)
		require.NoError(t, f.Release())
	}
	l, err := s.pool.TryAllocate(t.Context(), other)
	require.NoError(t, err)
	of := func() (tensors []mempool.Tensor) {
		for b, err := range s.consumer.Buffers(t.Context()) {
			require.NoError(t, err)
			if b.ID == l.Grant().Buffer {
				tensors = append(tensors, b.Tensor)
			}
		}
		return tensors
	}
	assert.Equal(t, []mempool.Tensor{other}, of(), "while it is written")
	require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: "w", Tensor: again}))
	want := other
	if again != nil {
		want = *again
	}
	assert.Equal(t, want, l.Tensor())
	assert.Equal(t, []mempool.Tensor{want}, of())
	for n, err := range s.consumer.Names(t.Context()) {
		require.NoError(t, err)
		assert.Equal(t, want, n.Tensor)
	}
	named, err := s.consumer.TryGet(t.Context(), "w", LeaseOptions{})
	require.NoError(t, err)
	byID, err := s.consumer.TryLease(t.Context(), l.Grant().Buffer, l.Grant().Generation, LeaseOptions{})
	require.NoError(t, err)
	for _, got := range []*Lease{named, byID, l} {
		assert.Equal(t, want, got.Tensor())
		release(t, got)
	}
}

func TestALeaseIsPublishedOnce(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 2})
	l := allocate(t, s.pool, 8)
	memory, err := l.Bytes(t.Context())
	require.NoError(t, err)
	memory[0] = 1
	_, err = s.from.Publish(t.Context(), l, mempool.FrameOptions{})
	require.NoError(t, err)
	memory[0] = 2
	_, err = s.from.Publish(t.Context(), l, mempool.FrameOptions{})
	require.ErrorIs(t, err, ErrReleased)
	assert.ErrorContains(t, err, "allocate a lease for each frame")
	require.ErrorIs(t, l.Publish(t.Context(), mempool.Publication{Name: "x"}), ErrReleased)
}

func TestABufferThatHadANameIsNotAllocatedAgain(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	s.send(t, 0)
	require.NoError(t, receive(t, from, 0).Release())
	l := allocate(t, s.pool, 1<<16)
	named := l.Grant().Buffer
	require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: "x", Keep: true}))
	require.NoError(t, l.Release(false))
	l, err := s.producer.TryGet(t.Context(), "x", LeaseOptions{Write: true})
	require.NoError(t, err)
	require.Equal(t, named, l.Grant().Buffer)
	require.NoError(t, l.CopyFrom(context.Background(), 0, frameOf(1, 1<<16)))
	_, err = s.from.Publish(t.Context(), l, mempool.FrameOptions{Meta: map[string]any{"n": "1"}})
	require.NoError(t, err)
	require.NoError(t, receive(t, from, 1).Release())
	for n := range uint64(8) {
		l := allocate(t, s.pool, 1<<16)
		require.NotEqual(t, named, l.Grant().Buffer)
		require.NoError(t, l.CopyFrom(context.Background(), 0, frameOf(2+n, 1<<16)))
		_, err := s.from.Publish(t.Context(), l, mempool.FrameOptions{Meta: map[string]any{"n": fmt.Sprint(2 + n)}})
		require.NoError(t, err)
		require.NoError(t, receive(t, from, 2+n).Release())
	}
	l, err = s.consumer.Get(t.Context(), "x", LeaseOptions{})
	require.NoError(t, err)
	b := make([]byte, 1<<16)
	require.NoError(t, l.CopyTo(context.Background(), b, 0))
	assert.Equal(t, frameOf(1, 1<<16), b)
	require.NoError(t, l.Release(false))
}

func TestALeaseThatCameBackIsAllocatedAgainWithoutTheService(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	const frames = 500
	for n := range uint64(frames) {
		s.send(t, n)
		require.NoError(t, receive(t, from, n).Release())
	}
	assert.Less(t, s.producer.SessionStats().Allocated, uint64(frames/2), "only some of the leases came back when the client released them")
}

func TestALeaseThatIsAllocatedAgainHasItsOwnTensor(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	own, other := mempool.Tensor{DType: mempool.Float32, Shape: []uint64{6}}, mempool.Tensor{DType: mempool.Int32, Shape: []uint64{2, 3}}
	for range 3 {
		l, err := s.pool.TryAllocate(t.Context(), own)
		require.NoError(t, err)
		_, err = s.from.Publish(t.Context(), l, mempool.FrameOptions{Tensor: &other})
		require.NoError(t, err)
		f, err := from.next(t.Context())
		require.NoError(t, err)
		assert.Equal(t, other, f.Lease.Tensor())
		require.NoError(t, f.Release())
	}
	l, err := s.pool.TryAllocate(t.Context(), own)
	require.NoError(t, err)
	assert.Equal(t, own, l.Tensor())
	require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: "w"}))
	named, err := s.consumer.TryGet(t.Context(), "w", LeaseOptions{})
	require.NoError(t, err)
	assert.Equal(t, own, named.Tensor())
	release(t, named)
	release(t, l)
}

func TestALeaseIsNotAllocatedAgainWhileAReaderWorksOnItsMemory(t *testing.T) {
	s, finish := unfinished(t, 2)
	defer finish()
	_, err := s.pool.TryAllocate(t.Context(), mempool.Bytes(1<<16))
	require.ErrorIs(t, err, ErrLimit)
	finish()
	require.NoError(t, <-allocating(t.Context(), s.pool))
}

func TestAnotherSessionGetsTheMemoryOfAStreamThatGoesOn(t *testing.T) {
	s := pair(t, hostPool("p", 2<<16), mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	other, err := s.consumer.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	s.send(t, 0)
	require.NoError(t, receive(t, from, 0).Release())
	asked := allocating(t.Context(), other)
	for n, got := uint64(1), false; !got; n++ { // each frame has a block again as soon as the last one came back
		s.send(t, n)
		require.NoError(t, receive(t, from, n).Release())
		select {
		case err := <-asked:
			require.NoError(t, err)
			got = true
		default:
		}
	}
}

func TestMemoryOfOtherSizesIsNotKeptFromAnAllocationThatDoesNotWait(t *testing.T) {
	s := pair(t, hostPool("p", 4<<16), mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	for n := range uint64(6) {
		s.send(t, n)
		require.NoError(t, receive(t, from, n).Release())
	}
	for range 2 {
		defer allocate(t, s.pool, 1<<16).Release(false)
	}
	require.NoError(t, sendFrame(t.Context(), s.pool, s.from, 6, 1<<16, mempool.FrameOptions{}))
	l, err := s.pool.TryAllocate(t.Context(), mempool.Bytes(1<<16-8)) // the last free block is the block of frame 5, which has come back
	require.NoError(t, err)
	require.NoError(t, l.Release(false))
}

func TestAnAllocationThatDoesNotWaitGetsMemoryThatAnotherGoroutineIsTakingBack(t *testing.T) {
	s := pair(t, hostPool("p", 2<<16), mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	s.send(t, 0)
	for n := range uint64(200) {
		require.NoError(t, receive(t, from, n).Release())
		s.producer.streams.Wanted(s.pool.Info().ID) // then another goroutine takes back what comes back
		s.send(t, n+1)                              // the block of frame n comes back
		l, err := s.pool.TryAllocate(t.Context(), mempool.Bytes(1<<16-8))
		require.NoError(t, err, "frame %d", n)
		require.NoError(t, l.Release(false))
	}
}

func TestADestroyedPoolGetsItsMemoryBackWhenConsumersLetGo(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 4})
	from := s.follow(t, mempool.SubscribeOptions{})
	for n := range uint64(3) {
		s.send(t, n)
	}
	f := receive(t, from, 0)
	require.NoError(t, s.pool.Destroy(t.Context()))
	eventually(t, func() bool { return s.svc.Stats().Buffers == 1 })
	n, err := verify(f)
	require.NoError(t, err)
	assert.Zero(t, n)
	require.NoError(t, f.Release())
	awaitReclaimed(t, s.svc)
}

func TestTrimmingGivesBackWhatTheClientKeeps(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 2})
	from := s.follow(t, mempool.SubscribeOptions{})
	for n := range uint64(6) {
		s.send(t, n)
		require.NoError(t, receive(t, from, n).Release())
	}
	require.Greater(t, s.svc.Stats().Buffers, 2)
	_, err := s.pool.Trim(t.Context(), 0)
	require.NoError(t, err)
	assert.Equal(t, 2, s.svc.Stats().Buffers, "those in the channel")
}

func TestAReleaseWithoutAPlaceForItsFenceWaitsForTheWork(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	clock, err := s.consumer.Clock(t.Context())
	require.NoError(t, err)
	var fences []mempool.Fence
	for range 2 {
		word, err := clock.Word(t.Context())
		require.NoError(t, err)
		fences = append(fences, clock.Next(word))
	}
	end := func(n uint64, done ...mempool.Fence) error {
		s.send(t, n)
		f := receive(t, from, n)
		defer f.Lease.held.Forget()
		return f.Lease.held.EndLocked(false, done...)
	}
	require.NoError(t, end(1, fences[0]))
	for n := range uint64(63) {
		require.NoError(t, end(2+n))
	}
	ended := make(chan error, 1)
	go func() { ended <- end(65, fences[1]) }() // the fence of frame 65 would replace the fence of frame 1
	eventually(t, func() bool { return s.from.stream.Outstanding() == 2 })
	select {
	case err := <-ended:
		t.Fatal("it did not wait: ", err)
	default:
	}
	require.NoError(t, clock.Reach(fences[1]))
	require.NoError(t, <-ended)
	s.send(t, 66)
	require.NoError(t, clock.Reach(fences[0]))
}

func TestALeaseThatHasEndedStaysEndedWhileItsMemoryIsUsedAgain(t *testing.T) {
	s := pair(t, hostPool("p", 2<<16), mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	p := publisher(t, s.from, 1<<16)
	var leases []*Lease
	var frames []*Frame
	var places []uintptr
	for n := range uint64(6) {
		l := loan(t, p)
		l.Grant().Tensor.Shape[0] = 1
		at, err := l.Pointer(t.Context())
		require.NoError(t, err)
		require.NoError(t, l.CopyFrom(context.Background(), 0, frameOf(n, 1<<16)))
		_, err = p.Publish(t.Context(), l, mempool.FrameOptions{Meta: map[string]any{"n": fmt.Sprint(n)}})
		require.NoError(t, err)
		f := receive(t, from, n)
		f.Lease.Grant().Tensor.Shape[0] = 1
		for _, ended := range leases {
			_, err := ended.Bytes(t.Context())
			assert.ErrorIs(t, err, ErrReleased)
			assert.ErrorIs(t, ended.Check(t.Context()), ErrReleased)
			assert.NoError(t, ended.Release(false))
		}
		for _, released := range frames {
			_, err := released.Lease.Bytes(context.Background())
			assert.ErrorIs(t, err, ErrReleased)
			assert.NoError(t, released.Release())
		}
		assert.Equal(t, []uint64{1 << 16}, f.Lease.Tensor().Shape, "what others did with what they were told")
		require.NoError(t, f.Release())
		leases, frames, places = append(leases, l), append(frames, f), append(places, at)
	}
	assert.Equal(t, places[1], places[3], "the memory was used again")
}
