package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

// channelPair is a channel with a producer and a consumer, each in its own session.
type channelPair struct {
	*rig
	producer, consumer *Client
	pool               *Pool
	from, to           *Channel
}

func pair(t testing.TB, pool mempool.PoolSpec, spec mempool.ChannelSpec) *channelPair {
	t.Helper()
	s := &channelPair{rig: start(t, server.Config{}, unhurried)}
	s.producer, s.consumer = dial(t, s.path), dial(t, s.path)
	s.pool = createPool(t, s.producer, pool)
	s.from = makeChannel(t, s.producer, s.pool, spec)
	var err error
	s.to, err = s.consumer.TryOpenChannel(t.Context(), "c")
	require.NoError(t, err)
	return s
}

// follow returns a new consumer that has joined the channel.
func (s *channelPair) follow(t testing.TB, o mempool.SubscribeOptions) *subscription {
	t.Helper()
	from, err := s.to.subscribe(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(from.Leave)
	return from
}

func (s *channelPair) send(t testing.TB, n uint64) {
	t.Helper()
	require.NoError(t, sendFrame(t.Context(), s.pool, s.from, n, 1<<16, mempool.FrameOptions{}))
}

// receive takes the next frame, and fails the test if its number is not n.
func receive(t testing.TB, from *subscription, n uint64) *Frame {
	t.Helper()
	f, err := from.next(t.Context())
	require.NoError(t, err)
	require.NotNil(t, f)
	got, err := verify(f)
	require.NoError(t, err)
	require.Equal(t, n, got)
	return f
}

func TestMetaThatIsNotUTF8IsRefusedAndTheLeaseStays(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 4})
	from := s.follow(t, mempool.SubscribeOptions{})
	l := allocate(t, s.pool, 8)
	require.NoError(t, l.CopyFrom(t.Context(), 0, frameOf(7, 8)))
	for _, meta := range []map[string]any{{"n": "\xff"}, {"\xff": "7"}, {"n": "\xed\xa0\x80"}} {
		for _, publish := range []publishing{s.from.Publish, s.from.TryPublish} {
			_, err := publish(t.Context(), l, mempool.FrameOptions{Meta: meta})
			require.ErrorIs(t, err, ErrInvalid, "%q", meta)
			require.ErrorContains(t, err, "UTF-8")
		}
	}
	number, err := s.from.Publish(t.Context(), l, mempool.FrameOptions{Meta: map[string]any{"n": "7", "größe": "10 µm"}})
	require.NoError(t, err)
	f := receive(t, from, 7)
	assert.Equal(t, number, f.Seq)
	assert.Equal(t, "10 µm", f.Meta["größe"])
	require.NoError(t, f.Release())
}

func TestFramesOutliveTheirProducer(t *testing.T) {
	svc, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 4<<16))
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Capacity: 3})
	gone := dial(t, path)
	theirs, err := gone.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	same, err := gone.TryOpenChannel(t.Context(), "c")
	require.NoError(t, err)
	for n := range uint64(7) {
		require.NoError(t, sendFrame(t.Context(), theirs, same, n, 1<<16, mempool.FrameOptions{}))
	}
	require.NoError(t, gone.Close())
	assert.Equal(t, []uint64{4, 5, 6}, take(t, ch, mempool.SubscribeOptions{Oldest: true}, 3))
	require.NoError(t, sendFrame(t.Context(), p, ch, 7, 1<<16, mempool.FrameOptions{}))
	assert.Equal(t, []uint64{5, 6, 7}, take(t, ch, mempool.SubscribeOptions{Oldest: true}, 3))
	require.NoError(t, ch.Close(t.Context()))
	all, err := p.Allocate(t.Context(), mempool.Bytes(4<<16))
	require.NoError(t, err)
	require.NoError(t, all.Release(false))
	awaitReclaimed(t, svc)
}

func TestAFrameCarriesWhatItsSenderSays(t *testing.T) {
	_, path := serve(t, server.Config{})
	producer, consumer := dial(t, path), dial(t, path)
	p := createPool(t, producer, hostPool("p", 1<<20))
	ch := makeChannel(t, producer, p, mempool.ChannelSpec{Capacity: 4})
	theirs, err := consumer.TryOpenChannel(t.Context(), "c")
	require.NoError(t, err)
	from, err := theirs.subscribe(t.Context(), mempool.SubscribeOptions{})
	require.NoError(t, err)
	defer from.Leave()
	clock, err := producer.Clock(t.Context())
	require.NoError(t, err)
	word, err := clock.Word(t.Context())
	require.NoError(t, err)
	event, err := mempool.EventOf(bytes.Repeat([]byte{5}, mempool.EventBytes))
	require.NoError(t, err)

	for range 6 {
		ready := clock.Next(word)
		l := allocate(t, p, 1000)
		strided := mempool.Tensor{DType: mempool.Int16, Shape: []uint64{2, 3}, Strides: []int64{-3, 1}, ByteOffset: 6}
		before := time.Now()
		number, err := ch.Publish(t.Context(), l, mempool.FrameOptions{Tensor: &strided, Meta: map[string]any{"": "empty", "camera": "left"},
			Completion: mempool.Completion{Ready: &ready, Event: event}})
		require.NoError(t, err)
		assert.ErrorIs(t, l.Check(t.Context()), ErrReleased)
		f, err := from.next(t.Context())
		require.NoError(t, err)
		assert.Equal(t, number, f.Seq)
		assert.Equal(t, map[string]any{"": "empty", "camera": "left"}, f.Meta)
		assert.WithinRange(t, f.Time, before, time.Now())
		info := f.Lease.Grant()
		assert.Equal(t, strided, info.Tensor)
		assert.EqualValues(t, 1000, info.Bytes)
		assert.GreaterOrEqual(t, info.BlockBytes, info.Bytes)
		assert.Equal(t, p.Info().ID, info.Pool)
		assert.Equal(t, event.Handle(), info.Event)
		assert.Equal(t, []mempool.Fence{ready}, info.Wait)
		assert.False(t, info.Write)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		assert.ErrorIs(t, f.Lease.WaitOn(ended, mempool.CPU), context.Canceled)
		require.NoError(t, clock.Reach(ready))
		require.NoError(t, f.Lease.WaitOn(t.Context(), mempool.CPU))
		assert.ErrorIs(t, f.Lease.CopyFrom(context.Background(), 0, []byte{1}), ErrInvalid)
		assert.ErrorIs(t, f.Lease.Publish(t.Context(), mempool.Publication{Name: "x"}), ErrInvalid)
		_, err = theirs.Publish(t.Context(), f.Lease, mempool.FrameOptions{})
		assert.ErrorIs(t, err, ErrInvalid)
		require.NoError(t, f.Release())
	}
}

func TestWhatCannotBeAFrameIsRefusedAndTheLeaseLivesOn(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p, q := createPool(t, c, hostPool("p", 1<<20)), createPool(t, c, hostPool("q", 1<<20))
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Capacity: 1})
	l, foreign := allocate(t, p, 100), allocate(t, q, 100)
	large := mempool.Bytes(101)
	for what, try := range map[string]func() error{
		"a tensor beyond the buffer": func() error {
			_, err := ch.Publish(t.Context(), l, mempool.FrameOptions{Tensor: &large})
			return err
		},
		"another pool's": func() error { _, err := ch.Publish(t.Context(), foreign, mempool.FrameOptions{}); return err },
		"another's fence": func() error {
			_, err := ch.Publish(t.Context(), l, mempool.FrameOptions{Completion: mempool.Completion{Ready: &mempool.Fence{Timeline: 99, Value: 1}}})
			return err
		},
	} {
		assert.ErrorIs(t, try(), ErrInvalid, what)
	}
	_, err := ch.Publish(t.Context(), l, mempool.FrameOptions{})
	require.NoError(t, err)
	require.NoError(t, foreign.Release(false))
	require.NoError(t, ch.Close(t.Context()))
	late := allocate(t, p, 100)
	_, err = ch.Publish(t.Context(), late, mempool.FrameOptions{})
	assert.ErrorIs(t, err, ErrClosed)
	require.NoError(t, late.Release(false))
}

func TestMemoryOfAFrameThatWasNotSentIsNotUsedBeforeItsProducerIsDone(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, other := dial(t, path), dial(t, path)
	p := createPool(t, c, hostPool("p", 2<<16))
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Capacity: 1, Mode: mempool.WorkQueue})
	theirs, err := other.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	require.NoError(t, sendFrame(t.Context(), p, ch, 1, 1<<16, mempool.FrameOptions{}))
	clock, err := c.Clock(t.Context())
	require.NoError(t, err)
	word, err := clock.Word(t.Context())
	require.NoError(t, err)
	ready := clock.Next(word)
	l := allocate(t, p, 1<<16)
	ctx, cancel := context.WithCancel(t.Context())
	defer time.AfterFunc(10*time.Millisecond, cancel).Stop() // in most runs, Publish is waiting at this moment
	_, err = ch.Publish(ctx, l, mempool.FrameOptions{Completion: mempool.Completion{Ready: &ready}})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, l.Check(t.Context()), ErrReleased)
	again, err := theirs.Allocate(t.Context(), mempool.Bytes(1<<16))
	require.NoError(t, err)
	assert.Equal(t, []mempool.Fence{ready}, again.Grant().Wait)
	require.NoError(t, clock.Reach(ready))
	require.NoError(t, again.Release(false))
}

func TestWhatAFullChannelDoes(t *testing.T) {
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		for policy, want := range map[mempool.FullPolicy]error{
			mempool.Block: ErrLimit, mempool.Fail: ErrLimit, mempool.DropOldest: nil, mempool.Latest: nil,
		} {
			t.Run(fmt.Sprint(mode, " ", policy), func(t *testing.T) {
				s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Mode: mode, Capacity: 2, Full: policy})
				from := s.follow(t, mempool.SubscribeOptions{})
				for n := range uint64(2) {
					s.send(t, n)
				}
				require.ErrorIs(t, trySendFrame(t.Context(), s.pool, s.from, 2, 1<<16), want)
				limit := time.Minute
				if policy == mempool.Block { // Block is the only policy with which Publish waits
					limit = time.Millisecond
				}
				lease := allocate(t, s.pool, 1<<16)
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				_, err := s.from.Publish(ctx, lease, mempool.FrameOptions{Meta: map[string]any{"n": "3"}})
				require.ErrorIs(t, err, want)
				assert.Equal(t, policy == mempool.Block, errors.Is(err, context.DeadlineExceeded))
				if want != nil {
					require.ErrorContains(t, err, `channel "c" is full: it keeps 2 frames, and `)
					own := fmt.Sprintf("(pid %d, this program) has not released frame 1;", os.Getpid())
					require.Equal(t, mode == mempool.Broadcast, strings.Contains(err.Error(), own), "%v", err)
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

func TestTheErrorOfAFullQueueSaysHowManyConsumersItHas(t *testing.T) {
	for _, policy := range []mempool.FullPolicy{mempool.Block, mempool.Fail} {
		s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 1, Full: policy})
		s.send(t, 0)
		lease := allocate(t, s.pool, 1<<16)
		refused := func() string {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			_, err := s.from.Publish(ctx, lease, mempool.FrameOptions{})
			require.ErrorIs(t, err, ErrLimit)
			return err.Error()
		}
		require.Contains(t, refused(), "it keeps 1 frame, and it has 0 consumers; start one (Client.Subscribe), or")
		s.follow(t, mempool.SubscribeOptions{})
		require.Eventually(t, func() bool { // the producer may hear of the consumer later
			return strings.Contains(refused(), "it keeps 1 frame, and its consumers are behind (it has 1 consumer); release frames sooner, or")
		}, time.Minute, time.Millisecond)
	}
}

func TestAChannelWithoutACapacityKeepsTheDefault(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{})
	assert.Equal(t, mempool.DefaultCapacity, s.from.Identity().Capacity)
	assert.Equal(t, mempool.DefaultCapacity, s.to.Identity().Capacity)
}

func TestAFrameThatIsAcknowledgedNeedsNoPlaceAndKeepsItsMemory(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	var kept []*Frame
	for n := range uint64(6) {
		s.send(t, n)
		f := receive(t, from, n)
		require.ErrorIs(t, trySendFrame(t.Context(), s.pool, s.from, 99, 1<<16), ErrLimit)
		require.NoError(t, f.Ack())
		kept = append(kept, f)
	}
	from.Leave()
	for range 3 {
		s.send(t, 50)
	}
	for n, f := range kept {
		got, err := verify(f)
		require.NoError(t, err)
		assert.EqualValues(t, n, got)
		require.NoError(t, f.Release())
		assert.NoError(t, f.Release())
	}
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
	theirs, err := s.consumer.TryOpenPool(t.Context(), "p")
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
