package bridge

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// sharedPair is a producer and a consumer of a shared channel, in sessions of their own.
type sharedPair struct {
	*rig
	producer, consumer *Client
	pool               *Pool
	from, to           *Channel
}

func pair(t testing.TB, pool mempool.PoolSpec, spec mempool.ChannelSpec) *sharedPair {
	t.Helper()
	s := &sharedPair{rig: start(t, ServerConfig{}, unhurried)}
	s.producer, s.consumer = dial(t, s.path), dial(t, s.path)
	s.pool = createPool(t, s.producer, pool)
	spec.Shared = true
	s.from = makeChannel(t, s.producer, s.pool, spec)
	var err error
	s.to, err = s.consumer.OpenChannel(t.Context(), "c", 0)
	require.NoError(t, err)
	return s
}

// follow is a consumer that has joined.
func (s *sharedPair) follow(t testing.TB, o mempool.SubscribeOptions) *consuming {
	t.Helper()
	from, err := s.to.consume(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(from.abandon)
	return from
}

func (s *sharedPair) send(t testing.TB, n uint64) {
	t.Helper()
	require.NoError(t, sendFrame(t.Context(), s.pool, s.from, n, 1<<16, mempool.FrameOptions{}))
}

// receive takes the next frame, which must be n.
func receive(t testing.TB, from frameSource, n uint64) *Frame {
	t.Helper()
	f, err := from.next(t.Context())
	require.NoError(t, err)
	require.NotNil(t, f)
	got, err := verify(f)
	require.NoError(t, err)
	require.Equal(t, n, got)
	return f
}

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

func TestASteadySharedStreamAsksTheServiceForNothing(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 4})
	from := s.follow(t, mempool.SubscribeOptions{})
	n := uint64(0)
	round := func(frames int) (calls uint32, buffers map[uint64]struct{}) {
		buffers = make(map[uint64]struct{})
		for range frames {
			s.send(t, n)
			f := receive(t, from, n)
			buffers[f.Lease.Info().Buffer] = struct{}{}
			require.NoError(t, f.Release())
			n++
		}
		for _, c := range []*Client{s.producer, s.consumer} {
			c.mu.Lock()
			calls += c.lastQ
			c.mu.Unlock()
		}
		return calls, buffers
	}
	warm, first := round(20)
	calls, later := round(200)
	assert.Equal(t, warm, calls)
	assert.Equal(t, first, later, "the same buffers again and again")
	assert.LessOrEqual(t, len(first), 5)
}

func TestWhatAnIdleProducerKeepsIsThereForOthers(t *testing.T) {
	s := pair(t, hostPool("p", 8<<16), mempool.ChannelSpec{Capacity: 3})
	from := s.follow(t, mempool.SubscribeOptions{})
	for n := range uint64(12) {
		s.send(t, n)
		require.NoError(t, receive(t, from, n).Release())
	}
	other, err := s.consumer.OpenPool(t.Context(), "p", 0)
	require.NoError(t, err)
	for range 8 - 3 { // the channel keeps three
		l, err := other.Allocate(t.Context(), mempool.Bytes(1<<16), patience)
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
	require.NoError(t, s.from.Shut(t.Context()))
	f, err := from.next(t.Context())
	require.NoError(t, err)
	assert.Nil(t, f)
	from.abandon()
	eventually(t, func() bool { return s.svc.Stats().Buffers == 0 })
	eventually(t, func() bool {
		shared := &s.producer.shared
		shared.mu.Lock()
		defer shared.mu.Unlock()
		return len(shared.producers)+len(shared.members) == 0
	})
	again := makeChannel(t, s.producer, s.pool, mempool.ChannelSpec{Capacity: 3, Shared: true})
	require.NoError(t, sendFrame(t.Context(), s.pool, again, 1, 1<<16, mempool.FrameOptions{}), "a channel of the same name")
	err = sendFrame(t.Context(), s.pool, s.from, 1, 1<<16, mempool.FrameOptions{})
	assert.ErrorIs(t, err, ErrClosed)
}

// unfinished has a consumer release a frame while its work goes on. The frame's block has come back. Another is in the channel.
func unfinished(t *testing.T, blocks uint64) (s *sharedPair, finish func()) {
	s = pair(t, hostPool("p", blocks<<16), mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	s.send(t, 1)
	f := receive(t, from, 1)
	clock, err := s.consumer.Clock(t.Context())
	require.NoError(t, err)
	word, err := clock.Word()
	require.NoError(t, err)
	busy := clock.Next(word)
	require.NoError(t, f.Lease.end(false, busy))
	f.Lease.leave()
	s.send(t, 2)
	return s, sync.OnceFunc(func() { assert.NoError(t, clock.Reach(busy)) })
}

func TestTheNextFrameIsWrittenWhenTheReadersOfTheLastAreDone(t *testing.T) {
	s, finish := unfinished(t, 2)
	l := allocate(t, s.pool, 1<<16)
	require.Len(t, l.Info().Wait, 1)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, l.WaitOn(ended, mempool.CPU), context.Canceled)
	written := make(chan error)
	go func() { written <- l.CopyFrom(0, []byte("second")) }()
	m, err := l.mem.Memory(false)
	require.NoError(t, err)
	first := make([]byte, 1<<16)
	require.NoError(t, m.CopyTo(first, 0))
	assert.Equal(t, frameOf(1, 1<<16), first, "nobody has overwritten it")
	finish()
	require.NoError(t, <-written)
	require.NoError(t, l.Release(false))
}

func TestMemoryOnWhichWorkIsUnderWayIsTakenLast(t *testing.T) {
	s, finish := unfinished(t, 3)
	defer finish()
	for _, tickets := range []int{0, 1} {
		l := allocate(t, s.pool, 1<<16)
		assert.Len(t, l.Info().Wait, tickets)
		defer l.Release(false)
	}
	_, err := s.pool.Allocate(t.Context(), mempool.Bytes(1<<16), 0)
	assert.ErrorIs(t, err, ErrLimit)
}

func TestMemoryIsReleasedWhenTheReadersOfTheLastFrameAreDone(t *testing.T) {
	for what, do := range map[string]func(t *testing.T, s *sharedPair){
		"wanted": func(*testing.T, *sharedPair) {},
		"released by the user": func(t *testing.T, s *sharedPair) {
			require.NoError(t, allocate(t, s.pool, 1<<16).Release(false))
		},
	} {
		t.Run(what, func(t *testing.T) {
			s, finish := unfinished(t, 2)
			defer finish()
			do(t, s)
			other, err := s.consumer.OpenPool(t.Context(), "p", 0)
			require.NoError(t, err)
			_, err = other.Allocate(t.Context(), mempool.Bytes(1<<16), 50*time.Millisecond)
			require.ErrorIs(t, err, ErrLimit)
			asked := make(chan error)
			go func() {
				l, err := other.Allocate(context.Background(), mempool.Bytes(1<<16), patience)
				if err == nil {
					err = l.Release(false)
				}
				asked <- err
			}()
			finish()
			require.NoError(t, <-asked)
		})
	}
}

func TestWhatTheServiceDoesNotKnowOfIsWaitedForBeforeItHasTheMemory(t *testing.T) {
	s, finish := unfinished(t, 2)
	defer finish()
	direct := makeChannel(t, s.producer, s.pool, mempool.ChannelSpec{Name: "direct", Capacity: 1})
	l := allocate(t, s.pool, 1<<16)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, l.Publish(ended, mempool.Publication{Name: "x"}), context.Canceled)
	_, err := direct.Publish(ended, l, mempool.FrameOptions{})
	require.ErrorIs(t, err, context.Canceled)
	finish()
	_, err = direct.Publish(t.Context(), l, mempool.FrameOptions{})
	require.NoError(t, err)
	assert.Zero(t, producerLeases(t, s.producer))
}

func TestFramesOutliveTheirProducer(t *testing.T) { ways(t, testFramesOutliveTheirProducer) }

func testFramesOutliveTheirProducer(t *testing.T, shared bool) {
	svc, path := serve(t, ServerConfig{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 4<<16))
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Capacity: 3, Shared: shared})
	gone := dial(t, path)
	theirs, err := gone.OpenPool(t.Context(), "p", 0)
	require.NoError(t, err)
	same, err := gone.OpenChannel(t.Context(), "c", 0)
	require.NoError(t, err)
	for n := range uint64(7) {
		require.NoError(t, sendFrame(t.Context(), theirs, same, n, 1<<16, mempool.FrameOptions{}))
	}
	require.NoError(t, gone.Close())
	assert.Equal(t, []uint64{4, 5, 6}, take(t, ch, mempool.SubscribeOptions{Oldest: true}, 3))
	require.NoError(t, sendFrame(t.Context(), p, ch, 7, 1<<16, mempool.FrameOptions{}))
	assert.Equal(t, []uint64{5, 6, 7}, take(t, ch, mempool.SubscribeOptions{Oldest: true}, 3))
	require.NoError(t, ch.Shut(t.Context()))
	all, err := p.Allocate(t.Context(), mempool.Bytes(4<<16), patience)
	require.NoError(t, err)
	require.NoError(t, all.Release(false))
	settled(t, svc)
}

func TestAFrameCarriesWhatItsSenderSays(t *testing.T) { ways(t, testAFrameCarriesWhatItsSenderSays) }

func testAFrameCarriesWhatItsSenderSays(t *testing.T, shared bool) {
	_, path := serve(t, ServerConfig{})
	producer, consumer := dial(t, path), dial(t, path)
	p := createPool(t, producer, hostPool("p", 1<<20))
	ch := makeChannel(t, producer, p, mempool.ChannelSpec{Capacity: 4, Shared: shared})
	theirs, err := consumer.OpenChannel(t.Context(), "c", 0)
	require.NoError(t, err)
	from, err := theirs.follow(t.Context(), mempool.SubscribeOptions{})
	require.NoError(t, err)
	defer from.abandon()
	clock, err := producer.Clock(t.Context())
	require.NoError(t, err)
	word, err := clock.Word()
	require.NoError(t, err)
	event, err := mempool.EventOf(bytes.Repeat([]byte{5}, mempool.EventBytes))
	require.NoError(t, err)

	for range 6 {
		ready := clock.Next(word)
		l := allocate(t, p, 1000)
		strided := mempool.Tensor{DType: mempool.Int16, Shape: []uint64{2, 3}, Strides: []int64{-3, 1}, ByteOffset: 6}
		before := time.Now()
		number, err := ch.Publish(t.Context(), l, mempool.FrameOptions{Tensor: &strided, Meta: map[string]string{"": "empty", "camera": "left"},
			Completion: mempool.Completion{Ready: &ready, Event: event}})
		require.NoError(t, err)
		assert.ErrorIs(t, l.Release(false), ErrReleased)
		f, err := from.next(t.Context())
		require.NoError(t, err)
		assert.Equal(t, number, f.Seq)
		assert.Equal(t, map[string]string{"": "empty", "camera": "left"}, f.Meta)
		assert.WithinRange(t, f.Time, before, time.Now())
		info := f.Lease.Info()
		assert.Equal(t, strided, info.Tensor)
		assert.EqualValues(t, 1000, info.Bytes)
		assert.GreaterOrEqual(t, info.BlockBytes, info.Bytes)
		assert.Equal(t, p.info.ID, info.Pool)
		assert.Equal(t, event.Handle(), info.Event)
		assert.Equal(t, []mempool.Ticket{ready}, info.Wait)
		assert.False(t, info.Write)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		assert.ErrorIs(t, f.Lease.WaitOn(ended, mempool.CPU), context.Canceled)
		require.NoError(t, clock.Reach(ready))
		require.NoError(t, f.Lease.WaitOn(t.Context(), mempool.CPU))
		assert.ErrorIs(t, f.Lease.CopyFrom(0, []byte{1}), ErrInvalid)
		assert.ErrorIs(t, f.Lease.Publish(t.Context(), mempool.Publication{Name: "x"}), ErrInvalid)
		_, err = theirs.Publish(t.Context(), f.Lease, mempool.FrameOptions{})
		assert.ErrorIs(t, err, ErrInvalid)
		require.NoError(t, f.Release())
	}
}

func TestWhatCannotBeAFrameIsRefusedAndTheLeaseLivesOn(t *testing.T) { ways(t, testWhatCannotBeAFrame) }

func testWhatCannotBeAFrame(t *testing.T, shared bool) {
	_, path := serve(t, ServerConfig{})
	c := dial(t, path)
	p, q := createPool(t, c, hostPool("p", 1<<20)), createPool(t, c, hostPool("q", 1<<20))
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Capacity: 1, Shared: shared})
	l, foreign := allocate(t, p, 100), allocate(t, q, 100)
	large := mempool.Bytes(101)
	for what, try := range map[string]func() error{
		"a tensor beyond the buffer": func() error {
			_, err := ch.Publish(t.Context(), l, mempool.FrameOptions{Tensor: &large})
			return err
		},
		"another pool's": func() error { _, err := ch.Publish(t.Context(), foreign, mempool.FrameOptions{}); return err },
		"another's ticket": func() error {
			_, err := ch.Publish(t.Context(), l, mempool.FrameOptions{Completion: mempool.Completion{Ready: &mempool.Ticket{Timeline: 99, Value: 1}}})
			return err
		},
	} {
		assert.ErrorIs(t, try(), ErrInvalid, what)
	}
	_, err := ch.Publish(t.Context(), l, mempool.FrameOptions{})
	require.NoError(t, err)
	require.NoError(t, foreign.Release(false))
	require.NoError(t, ch.Shut(t.Context()))
	late := allocate(t, p, 100)
	_, err = ch.Publish(t.Context(), late, mempool.FrameOptions{})
	assert.ErrorIs(t, err, ErrClosed)
	require.NoError(t, late.Release(false))
}

func TestWhatAFullSharedChannelDoes(t *testing.T) {
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		for policy, want := range map[mempool.FullPolicy]error{
			mempool.Block: ErrTimeout, mempool.Fail: ErrLimit, mempool.DropOldest: nil, mempool.Latest: nil,
		} {
			t.Run(fmt.Sprint(mode, " ", policy), func(t *testing.T) {
				s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Mode: mode, Capacity: 2, Full: policy})
				from := s.follow(t, mempool.SubscribeOptions{})
				for n := range uint64(2) {
					s.send(t, n)
				}
				for _, wait := range []time.Duration{-1, time.Millisecond} {
					err := sendFrame(t.Context(), s.pool, s.from, 2, 1<<16, mempool.FrameOptions{Wait: wait})
					require.ErrorIs(t, err, want)
				}
				first := map[mempool.FullPolicy]uint64{mempool.Block: 0, mempool.Fail: 0, mempool.DropOldest: 2, mempool.Latest: 3}[policy]
				f, err := from.next(t.Context())
				require.NoError(t, err)
				assert.Equal(t, first+1, f.Seq)
				assert.Equal(t, first, f.Dropped)
				require.NoError(t, f.Release())
			})
		}
	}
}

func TestAFrameThatIsAcknowledgedNeedsNoPlaceAndKeepsItsMemory(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	var kept []*Frame
	for n := range uint64(6) {
		s.send(t, n)
		f := receive(t, from, n)
		require.ErrorIs(t, sendFrame(t.Context(), s.pool, s.from, 99, 1<<16, mempool.FrameOptions{Wait: -1}), ErrTimeout)
		require.NoError(t, f.Ack())
		kept = append(kept, f)
	}
	from.abandon()
	for range 3 {
		s.send(t, 50)
	}
	for n, f := range kept {
		got, err := verify(f)
		require.NoError(t, err)
		assert.EqualValues(t, n, got)
		require.NoError(t, f.Release())
		assert.ErrorIs(t, f.Release(), ErrReleased)
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
	l, err := s.pool.Allocate(t.Context(), mempool.Bytes(1<<16-8), 0) // the last block is that of frame 5, which has come back
	require.NoError(t, err)
	require.NoError(t, l.Release(false))
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
	settled(t, s.svc)
}

func TestManyProducersAndConsumersShareAChannel(t *testing.T) {
	s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Capacity: 8})
	const consumers, senders, frames = 3, 4, 300
	var all sync.WaitGroup
	for range consumers {
		from := s.follow(t, mempool.SubscribeOptions{})
		all.Go(func() {
			seen := make(map[uint64]bool)
			for len(seen) < senders*frames {
				f, err := from.next(context.Background())
				if !assert.NoError(t, err) {
					return
				}
				n, err := verify(f)
				assert.NoError(t, err)
				assert.False(t, seen[n])
				seen[n] = true
				assert.NoError(t, f.Release())
			}
		})
	}
	theirs, err := s.consumer.OpenPool(t.Context(), "p", 0)
	require.NoError(t, err)
	for i := range uint64(senders) {
		pool, ch := s.pool, s.from
		if i%2 == 1 {
			pool, ch = theirs, s.to
		}
		all.Go(func() {
			for n := range uint64(frames) {
				if !assert.NoError(t, sendFrame(context.Background(), pool, ch, i*frames+n, 1000, mempool.FrameOptions{})) {
					return
				}
			}
		})
	}
	all.Wait()
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

func TestAReleaseWithoutAPlaceForItsTicketWaitsForTheWork(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	clock, err := s.consumer.Clock(t.Context())
	require.NoError(t, err)
	var tickets []mempool.Ticket
	for range 2 {
		word, err := clock.Word()
		require.NoError(t, err)
		tickets = append(tickets, clock.Next(word))
	}
	end := func(n uint64, done ...mempool.Ticket) error {
		s.send(t, n)
		f := receive(t, from, n)
		defer f.Lease.leave()
		return f.Lease.end(false, done...)
	}
	require.NoError(t, end(1, tickets[0]))
	for n := range uint64(63) {
		require.NoError(t, end(2+n))
	}
	ended := make(chan error, 1)
	go func() { ended <- end(65, tickets[1]) }() // whose ticket would stand in the place of the first
	eventually(t, func() bool { return s.from.client.shared.producers[s.from.info.ID].native.Lent() == 2 })
	select {
	case err := <-ended:
		t.Fatal("it did not wait: ", err)
	default:
	}
	require.NoError(t, clock.Reach(tickets[1]))
	require.NoError(t, <-ended)
	s.send(t, 66)
	require.NoError(t, clock.Reach(tickets[0]))
}
