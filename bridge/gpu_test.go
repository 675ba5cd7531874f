package bridge

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/gpus"
)

// gpuPool makes a pool on the first GPU. It skips the test if the machine has no GPU.
func gpuPool(t testing.TB, c *Client) *Pool {
	t.Helper()
	return gpuPoolOf(t, c, 256<<20)
}

// gpuPoolOf is like gpuPool, but the pool has at most maxBytes. When such a pool is full, the service uses blocks again even while GPU work
// on them is running.
func gpuPoolOf(t testing.TB, c *Client, maxBytes uint64) *Pool {
	t.Helper()
	if err := mempool.Device.Probe(""); err != nil {
		t.Skip(err)
	}
	return createPool(t, c, mempool.PoolSpec{Name: t.Name(), Kind: mempool.Device, MaxBytes: maxBytes})
}

// stop makes a queue wait until the fence of the clock is reached.
func stop(t testing.TB, q mempool.Queue, c *mempool.Clock, at mempool.Fence) {
	t.Helper()
	o := &mempool.Order{
		Pages: func(context.Context, uint64) (*mempool.Page, error) { return c.Page(), nil },
		Clock: func(context.Context) (*mempool.Clock, error) { return c, nil },
	}
	o.Begin([]mempool.Fence{at}, false)
	require.NoError(t, o.Before(context.Background(), q))
}

// queueOf returns the queue of this package's work on a lease's memory.
func queueOf(t testing.TB, l *Lease) mempool.Queue {
	t.Helper()
	return memoryOf(t, l).Queue()
}

// memoryOf returns the memory of a lease, without a wait.
func memoryOf(t testing.TB, l *Lease) (memory mempool.Memory) {
	t.Helper()
	require.NoError(t, l.held.With(t.Context(), 0, 0, false, func(m mempool.Memory) error {
		memory = m
		return nil
	}))
	return memory
}

// stopped makes the device stream of a lease's memory wait until the fence is reached.
func stopped(t testing.TB, l *Lease, c *mempool.Clock, at mempool.Fence) {
	t.Helper()
	gpus.NeedWords(t)
	stop(t, queueOf(t, l), c, at)
}

// unreached returns a fence that the client has not reached.
func unreached(t testing.TB, c *Client) (*mempool.Clock, mempool.Fence) {
	t.Helper()
	clock, err := c.Clock(t.Context())
	require.NoError(t, err)
	word, err := clock.Word(t.Context())
	require.NoError(t, err)
	return clock, clock.Next(word)
}

func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
	return b
}

func TestNothingOfATransferOnAGPUWaits(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := gpuPoolOf(t, c, 2<<20)
	clock, stuck := unreached(t, c)
	ctx := context.Background()

	l := allocate(t, p, 1<<20)
	stopped(t, l, clock, stuck)
	src := random(1<<20, 1)
	want := bytes.Clone(src)
	require.NoError(t, l.CopyFrom(context.Background(), 0, src)) // the GPU has not begun the copy
	clear(src)                                                   // but the caller may already use src again
	require.NoError(t, l.Publish(ctx, mempool.Publication{Name: "x"}))
	got, err := c.TryGet(ctx, "x", LeaseOptions{})
	require.NoError(t, err)
	require.Len(t, got.Grant().Wait, 1, "the content is not complete")

	w := allocate(t, p, 1<<20) // this lease writes the block and ends before the work is done; the next lease writes the same block
	require.NoError(t, w.CopyFrom(context.Background(), 0, want))
	require.NoError(t, w.Release(false))
	next := allocate(t, p, 1<<20)
	require.Equal(t, w.Grant().Block, next.Grant().Block)
	require.Len(t, next.Grant().Wait, 1)
	require.NoError(t, next.Fill(context.Background(), 0, 1<<20, 1))

	require.NoError(t, clock.Reach(stuck))
	dst := make([]byte, 1<<20)
	require.NoError(t, got.CopyTo(context.Background(), dst, 0))
	assert.True(t, bytes.Equal(want, dst))
	release(t, got)
	release(t, next)
}

// If the CPU cannot access the memory, Bytes returns nil, and must not make the memory's stream wait for earlier readers of the memory.
func TestNoStreamWaitsForWhoAsksForBytesThatTheCPUCannotReach(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, reader := dial(t, path), dial(t, path)
	ctx := t.Context()
	p := gpuPoolOf(t, c, 4096)
	theirs, stuck := unreached(t, reader)
	first := allocate(t, p, 4096)
	publish(t, first, "x")
	got, err := reader.TryGet(ctx, "x", LeaseOptions{})
	require.NoError(t, err)
	release(t, first)
	require.NoError(t, got.held.EndLocked(false, stuck))
	_, err = reader.Stats(ctx) // when the reply comes, the service has handled the release
	require.NoError(t, err)
	require.NoError(t, c.Unpublish(ctx, "x"))
	l := allocate(t, p, 4096)
	require.Equal(t, []mempool.Fence{stuck}, l.Grant().Wait)
	b, err := l.Bytes(context.Background())
	require.NoError(t, err)
	assert.Nil(t, b)
	clock, err := c.Clock(ctx)
	require.NoError(t, err)
	now, err := clock.Signal(queueOf(t, l))
	require.NoError(t, err)
	if now != nil {
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		assert.NoError(t, clock.Page().Await(limited, *now), "the device stream waits for a reader, for nothing")
	}
	require.NoError(t, theirs.Reach(stuck))
	release(t, l)
}

func TestOneFenceStandsForSeveralQueues(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, other := dial(t, path), dial(t, path)
	p := gpuPool(t, c)
	gpus.NeedWords(t)
	d, err := mempool.FindDevice("")
	require.NoError(t, err)
	gpu, err := d.Retain()
	require.NoError(t, err)
	defer gpu.Close()
	l := allocate(t, p, 1<<20)
	clock, err := c.Clock(t.Context())
	require.NoError(t, err)
	theirs, stuck := unreached(t, other)
	ctx := t.Context()
	o := c.session.Timelines.Order()
	none, err := o.AfterOne(ctx, queueOf(t, l))
	require.NoError(t, err)
	assert.Nil(t, none, "nothing was begun")
	var queues []mempool.Queue
	for range 2 {
		stream, err := gpu.NewStream()
		require.NoError(t, err)
		defer stream.Close()
		q := mempool.StreamQueue(gpu, stream)
		defer func() { assert.NoError(t, clock.Forget(ctx, q)) }()
		queues = append(queues, q)
	}
	stop(t, queues[1], theirs, stuck)
	one, err := o.AfterOne(ctx, queueOf(t, l), queues...)
	require.NoError(t, err)
	over, failed := clock.Page().Over(*one)
	assert.False(t, over, "the second queue has not come so far")
	assert.NoError(t, failed)
	require.NoError(t, theirs.Reach(stuck))
	require.NoError(t, clock.Await(ctx, *one))
	over, failed = clock.Page().Over(*one)
	assert.True(t, over)
	assert.NoError(t, failed)
	release(t, l)
}

func TestReleaseAsksTheServiceForNothingThatItWouldWaitFor(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := gpuPool(t, c)
	l := allocate(t, p, 1<<20)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, l.Fill(cancelled, 0, 1<<20, 1), context.Canceled, "it makes the timeline first")
	require.NoError(t, l.Fill(t.Context(), 0, 1<<20, 1))
	assert.NotNil(t, c.session.Timelines.Own(), "of which the fences are that say when the memory may be used")
	release(t, l)
}
