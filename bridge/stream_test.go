package bridge

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestFramesGoFromClientToClient(t *testing.T) {
	kinds(t, func(t *testing.T, spec mempool.PoolSpec) {
		svc, path := serve(t, server.Config{})
		producer, consumer := dial(t, path), dial(t, path)
		p := createPool(t, producer, spec)
		ctx := context.Background()
		ch := makeChannel(t, producer, p, mempool.ChannelSpec{Capacity: 4})
		same, err := consumer.TryOpenChannel(ctx, "c")
		require.NoError(t, err)
		assert.Equal(t, ch.Identity(), same.Identity())
		const frames = 200
		send := func(from, to int) {
			for n := from; n < to; n++ {
				assert.NoError(t, sendFrame(ctx, p, ch, uint64(n), 1+n*997%100000, mempool.FrameOptions{}))
			}
		}
		send(0, 1)
		var sender sync.WaitGroup
		want := uint64(0)
		for f, err := range same.Frames(ctx, mempool.SubscribeOptions{}) {
			require.NoError(t, err)
			if want == 0 {
				sender.Go(func() {
					send(1, frames)
					assert.NoError(t, ch.Close(ctx))
				})
			}
			n, err := verify(f)
			require.NoError(t, err)
			require.Equal(t, want, n)
			want++
			assert.Equal(t, want, f.Seq)
			assert.Zero(t, f.Dropped)
			assert.False(t, f.Time.IsZero())
			require.NoError(t, f.Release())
			assert.NoError(t, f.Release(), "again")
		}
		sender.Wait()
		assert.EqualValues(t, frames, want)
		for f, err := range same.Frames(ctx, mempool.SubscribeOptions{}) {
			assert.Nil(t, f)
			assert.ErrorIs(t, err, ErrClosed)
		}
		_, err = consumer.Stats(ctx)
		require.NoError(t, err)
		awaitReclaimed(t, svc)
	})
}

func TestAQueueSharesTheWork(t *testing.T) {
	_, path := serve(t, server.Config{})
	producer := dial(t, path)
	p := createPool(t, producer, hostPool("p", 1<<20))
	ctx := context.Background()
	ch := makeChannel(t, producer, p, mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 8})
	const frames = 300
	got := make(chan uint64, frames)
	workers := make(chan error)
	var sharing sync.WaitGroup // each worker keeps its first frame until every worker has a frame
	sharing.Add(3)
	var returned sync.Map
	for range 3 {
		c := dial(t, path)
		go func() {
			mine, err := c.TryOpenChannel(ctx, "c")
			if err != nil {
				workers <- err
				return
			}
			share := sync.OnceFunc(func() { sharing.Done(); sharing.Wait() })
			for f, err := range mine.Frames(ctx, mempool.SubscribeOptions{}) {
				if err != nil {
					workers <- err
					return
				}
				share()
				n, err := verify(f)
				if err != nil {
					workers <- err
					return
				}
				if _, again := returned.LoadOrStore(n, true); n%7 == 0 && !again {
					assert.NoError(t, f.Requeue())
					assert.NoError(t, f.Release())
					continue
				}
				got <- n
				assert.NoError(t, f.Release())
			}
			workers <- nil
		}()
	}
	for n := range uint64(frames) {
		require.NoError(t, sendFrame(ctx, p, ch, n, 64, mempool.FrameOptions{}))
	}
	require.NoError(t, ch.Close(ctx))
	for range 3 {
		require.NoError(t, <-workers)
	}
	seen := make(map[uint64]int)
	for range frames {
		seen[<-got]++
	}
	assert.Len(t, seen, frames, "each once")
	assert.Empty(t, got)
}

func TestPublishingBeforeTheWorkIsDone(t *testing.T) {
	kinds(t, func(t *testing.T, spec mempool.PoolSpec) {
		_, path := serve(t, server.Config{})
		producer, consumer := dial(t, path), dial(t, path)
		ctx := context.Background()
		p := createPool(t, producer, spec)
		clock, err := producer.Clock(ctx)
		require.NoError(t, err)
		word, err := clock.Word(t.Context())
		require.NoError(t, err)
		ready := clock.Next(word)
		l := allocate(t, p, 1<<20)
		m := memoryOf(t, l)
		event, err := mempool.EventOf(bytes.Repeat([]byte{5}, mempool.EventBytes))
		require.NoError(t, err)
		require.NoError(t, l.Publish(ctx, mempool.Publication{Name: "x", Completion: mempool.Completion{Ready: &ready, Event: event}}))
		got, err := consumer.TryGet(ctx, "x", LeaseOptions{})
		require.NoError(t, err)
		assert.Equal(t, []mempool.Fence{ready}, got.Grant().Wait)
		assert.Equal(t, event.Handle(), got.Grant().Event)

		ended, cancel := context.WithCancel(ctx)
		cancel()
		assert.ErrorIs(t, got.WaitOn(ended, mempool.CPU), context.Canceled)
		read := make(chan []byte)
		begin := func() {
			b := make([]byte, 1<<20)
			assert.NoError(t, got.CopyTo(context.Background(), b, 0), "it waits")
			read <- b
		}
		if spec.Kind == mempool.Host {
			go begin()
		}
		want := frameOf(7, 1<<20)
		require.NoError(t, m.CopyFrom(0, want)) // CopyFrom waits for earlier work on the memory
		require.NoError(t, m.Synchronize())
		if spec.Kind == mempool.Device { // both clients share one device stream in this process, and a wait in it delays all later work
			go begin()
		}
		require.NoError(t, clock.Reach(ready))
		assert.True(t, bytes.Equal(want, <-read))
		require.NoError(t, got.Release(false))
		require.NoError(t, l.Release(false))
	})
}

func TestTheNextWriterComesAfterTheReaders(t *testing.T) {
	kinds(t, func(t *testing.T, spec mempool.PoolSpec) {
		_, path := serve(t, server.Config{})
		producer, consumer := dial(t, path), dial(t, path)
		ctx := context.Background()
		p := createPool(t, producer, spec)
		first := allocate(t, p, spec.MaxBytes) // the pool has only one block, which every lease gets
		require.NoError(t, first.CopyFrom(context.Background(), 0, []byte("first")))
		publish(t, first, "x")
		got, err := consumer.TryGet(ctx, "x", LeaseOptions{})
		require.NoError(t, err)
		clock, err := consumer.Clock(ctx)
		require.NoError(t, err)
		word, err := clock.Word(t.Context())
		require.NoError(t, err)
		busy := clock.Next(word)
		require.NoError(t, got.held.EndLocked(false, busy)) // the consumer's work is not done
		got.held.Forget()
		m := memoryOf(t, first)
		require.NoError(t, first.Release(false))
		require.NoError(t, producer.Unpublish(ctx, "x"))
		_, err = consumer.Stats(ctx)
		require.NoError(t, err)

		second := allocate(t, p, spec.MaxBytes)
		require.Contains(t, second.Grant().Wait, busy)
		written := make(chan error)
		go func() { written <- second.CopyFrom(context.Background(), 0, []byte("second")) }()
		view := make([]byte, 5)
		if spec.Kind == mempool.Host {
			require.NoError(t, m.CopyTo(view, 0))
			assert.Equal(t, "first", string(view), "nobody has overwritten it")
		}
		require.NoError(t, clock.Reach(busy))
		require.NoError(t, <-written)
		publish(t, second, "y")
		again, err := consumer.TryGet(ctx, "y", LeaseOptions{})
		require.NoError(t, err)
		text := make([]byte, 6)
		require.NoError(t, again.CopyTo(context.Background(), text, 0))
		assert.Equal(t, "second", string(text))
		require.NoError(t, again.Release(false))
		require.NoError(t, second.Release(false))
	})
}

func TestAFullChannelTellsTheSender(t *testing.T) {
	_, path := serve(t, server.Config{})
	producer, consumer := dial(t, path), dial(t, path)
	ctx := context.Background()
	p := createPool(t, producer, hostPool("p", 1<<20))
	ch := makeChannel(t, producer, p, mempool.ChannelSpec{Capacity: 2})
	slow, err := consumer.TryOpenChannel(ctx, "c")
	require.NoError(t, err)
	sub, err := slow.subscribe(ctx, mempool.SubscribeOptions{})
	require.NoError(t, err)
	for n := range uint64(2) {
		require.NoError(t, sendFrame(ctx, p, ch, n, 8, mempool.FrameOptions{}))
	}
	l := allocate(t, p, 8)
	_, err = ch.TryPublish(ctx, l, mempool.FrameOptions{})
	require.ErrorIs(t, err, ErrLimit)
	assert.NotErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "pid")
	ended, cancel := context.WithTimeout(ctx, 1)
	defer cancel()
	for range 2 { // after the first failure, the lease is still valid
		_, err = ch.Publish(ended, l, mempool.FrameOptions{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, ErrLimit)
		assert.ErrorContains(t, err, "pid")
	}
	ended, cancel = context.WithCancel(ctx)
	cancel()
	_, err = ch.Publish(ended, l, mempool.FrameOptions{})
	require.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, l.Check(t.Context()), ErrReleased)
	sub.Leave()
	_, err = consumer.Stats(ctx) // when the reply comes, the service has handled leave
	require.NoError(t, err)
	require.NoError(t, trySendFrame(ctx, p, ch, 2, 8))

	mine := dial(t, path)
	foreign, err := mine.TryOpenPool(ctx, "p")
	require.NoError(t, err)
	other := allocate(t, foreign, 8)
	_, err = ch.Publish(ctx, other, mempool.FrameOptions{})
	assert.ErrorIs(t, err, ErrInvalid, "another client's lease")
	assert.Zero(t, producerLeases(t, producer))
}

func producerLeases(t *testing.T, c *Client) int {
	t.Helper()
	return len(c.session.Blocks.Leases())
}

func TestLeavingAChannelGivesBackWhatWasOnItsWay(t *testing.T) {
	svc, path := serve(t, server.Config{})
	producer, consumer := dial(t, path), dial(t, path)
	ctx := context.Background()
	p := createPool(t, producer, hostPool("p", 1<<20))
	ch := makeChannel(t, producer, p, mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 8})
	for n := range uint64(8) {
		require.NoError(t, sendFrame(ctx, p, ch, n, 8, mempool.FrameOptions{}))
	}
	mine, err := consumer.TryOpenChannel(ctx, "c")
	require.NoError(t, err)
	assert.Equal(t, []uint64{0, 1}, take(t, mine, mempool.SubscribeOptions{}, 2))
	assert.Equal(t, []uint64{2, 3, 4, 5, 6, 7}, take(t, mine, mempool.SubscribeOptions{}, 6))
	require.NoError(t, ch.Close(ctx))
	_, err = consumer.Stats(ctx)
	require.NoError(t, err)
	awaitReclaimed(t, svc)

	c2 := makeChannel(t, producer, p, mempool.ChannelSpec{Name: "c2", Capacity: 1})
	done := make(chan error)
	gone := dial(t, path)
	theirs, err := gone.TryOpenChannel(ctx, "c2")
	require.NoError(t, err)
	sub, err := theirs.subscribe(ctx, mempool.SubscribeOptions{})
	require.NoError(t, err)
	go func() {
		f, err := sub.next(ctx)
		assert.Nil(t, f)
		done <- err
	}()
	require.NoError(t, gone.Close())
	assert.ErrorIs(t, <-done, ErrClosed)
	require.NoError(t, sendFrame(ctx, p, c2, 1, 8, mempool.FrameOptions{}))
	require.NoError(t, sendFrame(ctx, p, c2, 2, 8, mempool.FrameOptions{}))
}

func TestADestroyedPoolEndsItsFramesWithAnError(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	ctx := context.Background()
	p := createPool(t, c, hostPool("p", 1<<20))
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Capacity: 1})
	require.NoError(t, sendFrame(ctx, p, ch, 1, 8, mempool.FrameOptions{}))
	var last error
	for f, err := range ch.Frames(ctx, mempool.SubscribeOptions{}) {
		if err != nil {
			last = err
			continue
		}
		require.NoError(t, f.Release())
		require.NoError(t, p.Destroy(ctx))
	}
	assert.ErrorIs(t, last, ErrClosed)
	assert.False(t, errors.Is(last, ErrDisconnected))
}

func TestLatestTakesTheNewestFrameAgainAndAgain(t *testing.T) {
	kinds(t, func(t *testing.T, spec mempool.PoolSpec) {
		svc, path := serve(t, server.Config{})
		producer, consumer := dial(t, path), dial(t, path)
		p := createPool(t, producer, spec)
		ctx := context.Background()
		ch := makeChannel(t, producer, p, mempool.ChannelSpec{Capacity: 4})
		same, err := consumer.TryOpenChannel(ctx, "c")
		require.NoError(t, err)
		ended, end := context.WithCancel(ctx)
		end()
		_, err = same.Latest(ended)
		require.ErrorIs(t, err, context.Canceled)
		for n := range uint64(6) {
			require.NoError(t, sendFrame(ctx, p, ch, n, 100, mempool.FrameOptions{}))
		}
		for range 5 {
			f, err := same.Latest(ctx)
			require.NoError(t, err)
			n, err := verify(f)
			require.NoError(t, err)
			assert.Equal(t, []uint64{5, 6}, []uint64{n, f.Seq})
			require.NoError(t, f.Release())
		}
		require.NoError(t, ch.Close(ctx))
		_, err = same.Latest(ctx)
		require.ErrorIs(t, err, ErrClosed)
		queue := makeChannel(t, producer, p, mempool.ChannelSpec{Name: "q", Mode: mempool.WorkQueue})
		_, err = queue.Latest(ctx)
		require.ErrorIs(t, err, ErrInvalid)
		require.NoError(t, queue.Close(ctx))
		awaitReclaimed(t, svc)
	})
}

func TestTheErrorOfAChannelThatIsGoneHasItsName(t *testing.T) {
	s := pair(t, hostPool("p", 1<<16), mempool.ChannelSpec{Capacity: 1})
	require.NoError(t, s.from.Close(t.Context()))
	theirs, err := s.consumer.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	for what, use := range map[string]func() error{
		"latest": func() error { _, err := s.to.Latest(t.Context()); return err },
		"publish": func() error {
			_, err := s.to.Publish(t.Context(), allocate(t, theirs, 8), mempool.FrameOptions{})
			return err
		},
		"publisher": func() error { _, err := s.to.Publisher(t.Context(), mempool.Bytes(8)); return err },
		"wait":      func() error { return s.to.WaitForConsumers(t.Context(), 1) },
		"close":     func() error { return s.to.Close(t.Context()) },
	} {
		err := use()
		require.ErrorIs(t, err, ErrClosed, what)
		assert.ErrorContains(t, err, `channel "c" is gone: this or another program has closed it, or its pool was destroyed; make it again (Client.CreateChannel)`, what)
	}
	require.NoError(t, s.consumer.Close())
	_, err = s.to.Latest(t.Context())
	assert.NotContains(t, err.Error(), "is gone", "the client was closed")
}
