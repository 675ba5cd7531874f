package kinds

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/gpus"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// client starts a service, and returns a client and its pool on the first GPU. If streams of this GPU cannot wait for
// words, client skips the test.
func client(t *testing.T) (*bridge.Client, *bridge.Pool) {
	t.Helper()
	gpus.NeedWords(t)
	c, err := bridge.Dial(t.Context(), rig.Serve(t).Socket)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	p, err := c.CreatePool(t.Context(), mempool.PoolSpec{Name: "p", Kind: mempool.Device, MaxBytes: 64 << 20})
	require.NoError(t, err)
	return c, p
}

// stop makes a queue wait until the clock c reaches the fence at.
func stop(t *testing.T, q mempool.Queue, c *mempool.Clock, at mempool.Fence) {
	t.Helper()
	o := &mempool.Order{
		Pages: func(context.Context, uint64) (*mempool.Page, error) { return c.Page(), nil },
		Clock: func(context.Context) (*mempool.Clock, error) { return c, nil },
	}
	o.Begin([]mempool.Fence{at}, false)
	require.NoError(t, o.Before(context.Background(), q))
}

// gpuContext returns the primary context of the first GPU. The context stays open until the test ends.
func gpuContext(t *testing.T) *cuda.Context {
	t.Helper()
	d, err := mempool.FindDevice("")
	require.NoError(t, err)
	ctx, err := d.Retain()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ctx.Close()) })
	return ctx
}

// unreached returns the clock of a client, and a fence that the clock has not reached.
func unreached(t *testing.T, c *bridge.Client) (*mempool.Clock, mempool.Fence) {
	t.Helper()
	clock, err := c.Clock(t.Context())
	require.NoError(t, err)
	word, err := clock.Word(t.Context())
	require.NoError(t, err)
	return clock, clock.Next(word)
}

func TestAStreamOfTheCallersIsAQueue(t *testing.T) {
	c, p := client(t)
	clock, err := c.Clock(t.Context())
	require.NoError(t, err)
	ctx := context.Background()
	l, err := p.TryAllocate(t.Context(), mempool.Bytes(1<<20))
	require.NoError(t, err)
	gpu := gpuContext(t)
	stream, err := gpu.NewStream()
	require.NoError(t, err)
	q := mempool.StreamQueue(gpu, stream)

	src := random(1 << 20)
	require.NoError(t, l.CopyFrom(context.Background(), 0, src))
	require.NoError(t, l.WaitOn(ctx, q), "our copy comes first")
	ptr, err := l.Pointer(context.Background())
	require.NoError(t, err)
	assert.NotZero(t, ptr)
	require.NoError(t, stream.Memset8(cuda.DevicePtr(ptr), 9, 100))
	require.NoError(t, l.Publish(ctx, mempool.Publication{Name: "x", Completion: mempool.Completion{After: []mempool.Queue{q}}}))
	copy(src, bytes.Repeat([]byte{9}, 100))
	dst := make([]byte, 1<<20)
	require.NoError(t, l.CopyTo(context.Background(), dst, 0), "after what the queue did")
	assert.True(t, bytes.Equal(src, dst))
	got, err := c.TryGet(ctx, "x", bridge.LeaseOptions{})
	require.NoError(t, err)
	require.NoError(t, got.WaitOn(ctx, q))
	require.NoError(t, got.ReleaseAfter(context.Background(), q))
	require.NoError(t, l.Release(false))
	require.NoError(t, clock.Forget(ctx, q))
	require.NoError(t, stream.Close())
}

// gpuEvent returns an event of the first GPU, and a stream of this GPU with the stream's queue.
func gpuEvent(t *testing.T) (*mempool.Event, *cuda.Stream, mempool.Queue) {
	t.Helper()
	ctx := gpuContext(t)
	stream, err := ctx.NewStream()
	require.NoError(t, err)
	e, err := mempool.NewEvent(ctx)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, e.Close())
		assert.NoError(t, stream.Synchronize())
		assert.NoError(t, stream.Close())
	})
	return e, stream, mempool.StreamQueue(ctx, stream)
}

func TestAnEventOfThisProcessIsWaitedForLikeAFence(t *testing.T) {
	c, p := client(t)
	clock, stuck := unreached(t, c)
	l, err := p.TryAllocate(t.Context(), mempool.Bytes(1<<20))
	require.NoError(t, err)
	e, stream, q := gpuEvent(t)
	publish := mempool.Publication{Name: "x", Completion: mempool.Completion{Event: e}}
	assert.ErrorIs(t, l.Publish(t.Context(), publish), mempool.ErrInvalid, "it was never recorded")
	stop(t, q, clock, stuck)
	ptr, err := l.Pointer(context.Background())
	require.NoError(t, err)
	require.NoError(t, stream.Memset8(cuda.DevicePtr(ptr), 7, 1<<20))
	require.NoError(t, e.Record(q))
	require.NoError(t, l.Publish(t.Context(), publish))

	got, err := c.TryGet(t.Context(), "x", bridge.LeaseOptions{})
	require.NoError(t, err)
	assert.Len(t, got.Grant().Wait, 1)
	opened, err := got.ReadyEvent()
	require.NoError(t, err)
	assert.Same(t, e, opened)
	_, late, reader := gpuEvent(t)
	require.NoError(t, got.WaitOn(t.Context(), reader))
	done, err := late.Query()
	require.NoError(t, err)
	assert.False(t, done, "the reader's stream waits")
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, got.WaitOn(ctx, mempool.CPU), context.DeadlineExceeded)

	require.NoError(t, l.Release(false))
	require.NoError(t, clock.Reach(stuck))
	seen := make([]byte, 1<<20)
	require.NoError(t, got.CopyTo(context.Background(), seen, 0))
	assert.Equal(t, byte(7), seen[len(seen)-1])
	require.NoError(t, got.Release(false))
}
