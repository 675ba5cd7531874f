package bridge

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/gpus"
)

// waits checks that f waits until the fence is reached.
func waits(t testing.TB, c *mempool.Clock, at mempool.Fence, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		assert.Fail(t, "it has not waited")
	case <-time.After(100 * time.Millisecond): // what does not wait is done now
	}
	assert.NoError(t, c.Reach(at))
	<-done
}

func pointerOf(t testing.TB, l *Lease) uintptr {
	t.Helper()
	p, err := l.Pointer(t.Context())
	require.NoError(t, err)
	return p
}

func TestAReaderWaitsForAllOfACopyDuringWhichAnotherGoroutineNamedAQueue(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, other := dial(t, path), dial(t, path)
	ctx, p := t.Context(), gpuPool(t, c)
	clock, stuck := unreached(t, c)
	mine, theirs := gpus.NewStream(t), gpus.NewStream(t)
	l := allocate(t, p, 4096)
	require.NoError(t, l.held.With(ctx, 0, 4096, true, func(m mempool.Memory) error { // a copy in two pieces
		if err := m.Fill(0, 2048, 1); err != nil {
			return err
		}
		if err := l.WaitOn(ctx, mine); err != nil {
			return err
		}
		stop(t, m.Queue(), clock, stuck)
		return m.Fill(2048, 2048, 1)
	}))
	publish := mempool.Publication{Name: "x", Completion: mempool.Completion{After: []mempool.Queue{mine}}}
	require.NoError(t, l.Publish(ctx, publish))
	got, err := other.TryGet(ctx, "x", LeaseOptions{})
	require.NoError(t, err)
	require.NoError(t, got.WaitOn(ctx, theirs))
	seen := theirs.Read(t, pointerOf(t, got), 4096)
	waits(t, clock, stuck, func() { assert.Equal(t, bytes.Repeat([]byte{1}, 4096), seen()) })
	require.NoError(t, got.ReleaseAfter(ctx, theirs))
	release(t, l)
}

func TestAPointerIsOfCompleteContentAlsoWhileAnotherGoroutineCopies(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, other := dial(t, path), dial(t, path)
	ctx, l := t.Context(), allocate(t, gpuPool(t, c), 4096)
	clock, stuck := unreached(t, c)
	stopped(t, l, clock, stuck)
	require.NoError(t, l.Fill(ctx, 0, 4096, 1))
	publish(t, l, "x")
	got, err := other.TryGet(ctx, "x", LeaseOptions{})
	require.NoError(t, err)
	require.NoError(t, got.held.With(ctx, 0, 4096, false, func(mempool.Memory) error { // as CopyTo, before it has copied
		waits(t, clock, stuck, func() { pointerOf(t, got) })
		return nil
	}))
	release(t, got)
	release(t, l)
}

func TestReadersOfASecondLeaseOfAPartWaitForCopiesOfTheFirst(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, other := dial(t, path), dial(t, path)
	ctx := t.Context()
	clock, stuck := unreached(t, c)
	theirs := gpus.NewStream(t)
	a, err := gpuPool(t, c).Arena(ctx, 1<<20)
	require.NoError(t, err)
	part, err := a.Allocate(ctx, 4096)
	require.NoError(t, err)
	l, err := part.Lease(ctx, mempool.Bytes(4096))
	require.NoError(t, err)
	stopped(t, l, clock, stuck)
	require.NoError(t, l.CopyFrom(ctx, 0, bytes.Repeat([]byte{1}, 4096)))
	publish(t, l, "whole")
	head, err := part.Lease(ctx, mempool.Bytes(512))
	require.NoError(t, err)
	publish(t, head, "head")
	got, err := other.TryGet(ctx, "head", LeaseOptions{})
	require.NoError(t, err)
	require.NoError(t, got.WaitOn(ctx, theirs))
	seen := theirs.Read(t, pointerOf(t, got), 512)
	waits(t, clock, stuck, func() { assert.Equal(t, bytes.Repeat([]byte{1}, 512), seen()) })
	require.NoError(t, got.ReleaseAfter(ctx, theirs))
	release(t, head)
	release(t, l)
	require.NoError(t, part.Free())
	require.NoError(t, a.Close())
}

func TestAPartOnWhichNothingWorkedIsReleasedAtOnce(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, other := dial(t, path), dial(t, path)
	ctx := t.Context()
	clock, stuck := unreached(t, other)
	a, err := gpuPool(t, c).Arena(ctx, 1<<20)
	require.NoError(t, err)
	part, err := a.Allocate(ctx, 4096)
	require.NoError(t, err)
	l, err := part.Lease(ctx, mempool.Bytes(4096))
	require.NoError(t, err)
	stopped(t, l, clock, stuck)
	release(t, l)
	again, err := part.Lease(ctx, mempool.Bytes(4096))
	require.NoError(t, err)
	release(t, again)
	require.NoError(t, clock.Reach(stuck))
}

func TestALeaseIsReleasedAfterMoreQueuesThanARequestHasFences(t *testing.T) {
	svc, path := serve(t, server.Config{})
	c := dial(t, path)
	ctx, p := t.Context(), gpuPoolOf(t, c, 2<<20)
	clock, stuck := unreached(t, c)
	l := allocate(t, p, 2<<20)
	var queues []mempool.Queue
	for range mempool.MaxDone + 1 {
		s := gpus.NewStream(t)
		require.NoError(t, l.WaitOn(ctx, s))
		queues = append(queues, s)
	}
	stop(t, queues[mempool.MaxDone], clock, stuck)
	require.NoError(t, l.ReleaseAfter(ctx, queues...))
	_, err := c.Stats(ctx) // the service has carried out the release
	require.NoError(t, err)
	assert.Zero(t, svc.Stats().Leases)
	next, last := allocate(t, p, 2<<20), gpus.NewStream(t)
	require.NoError(t, next.WaitOn(ctx, last))
	waits(t, clock, stuck, func() { assert.NoError(t, last.Synchronize()) })
	release(t, next)
}

func TestAFrameWhoseSlotHasAnotherQueuesFenceGoesBackWhenItsWorkIsDone(t *testing.T) {
	gpus.NeedWords(t)
	s := pair(t, mempool.PoolSpec{Name: "p", Kind: mempool.Device, MaxBytes: 64 << 20}, mempool.ChannelSpec{Capacity: 1})
	ctx, from, p := t.Context(), s.follow(t, mempool.SubscribeOptions{}), publisher(t, s.from, 4096)
	limit := session.WorkLimit
	session.WorkLimit = 50 * time.Millisecond
	t.Cleanup(func() { session.WorkLimit = limit })
	first, second := gpus.NewStream(t), gpus.NewStream(t)
	clock, stuck := unreached(t, s.consumer)
	stop(t, first, clock, stuck)
	stop(t, second, clock, stuck)
	next := func() *Frame {
		_, err := p.Publish(ctx, loan(t, p), mempool.FrameOptions{})
		require.NoError(t, err)
		f, err := from.next(ctx)
		require.NoError(t, err)
		return f
	}
	require.NoError(t, next().ReleaseAfter(ctx, first))
	for range shmchannel.MinSlots - 1 {
		require.NoError(t, next().Release())
	}
	require.NoError(t, next().ReleaseAfter(ctx, second)) // waits for a while only
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	l := loan(t, p)
	_, err := p.Publish(short, l, mempool.FrameOptions{})
	require.ErrorIs(t, err, context.DeadlineExceeded, "the frame is in hand as long as its queue works")
	require.NoError(t, clock.Reach(stuck))
	_, err = p.Publish(ctx, l, mempool.FrameOptions{})
	require.NoError(t, err)
	f, err := from.next(ctx)
	require.NoError(t, err)
	require.NoError(t, f.Release())
}

func TestAReaderThatDiedDoesNotSpoilWhatTheNextWriterPublished(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, reader := dial(t, path), dial(t, path)
	ctx, p := t.Context(), gpuPoolOf(t, c, 4096)
	theirs, stuck := unreached(t, reader)
	before := allocate(t, p, 4096)
	publish(t, before, "before")
	got, err := reader.TryGet(ctx, "before", LeaseOptions{})
	require.NoError(t, err)
	release(t, before)
	require.NoError(t, got.held.EndLocked(false, stuck))
	_, err = reader.Stats(ctx) // the service has carried out the release
	require.NoError(t, err)
	require.NoError(t, c.Unpublish(ctx, "before"))
	l := allocate(t, p, 4096)
	require.Len(t, l.Grant().Wait, 1)
	require.NoError(t, l.CopyFrom(ctx, 0, bytes.Repeat([]byte{1}, 4096)))
	publish(t, l, "x")
	theirs.Page().LetGo() // as the service does when the reader's process is gone
	require.NoError(t, l.Check(ctx))
	b := make([]byte, 4096)
	require.NoError(t, l.CopyTo(ctx, b, 0))
	assert.Equal(t, bytes.Repeat([]byte{1}, 4096), b)
	release(t, l)
}
