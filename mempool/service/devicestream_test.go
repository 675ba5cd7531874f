package service

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// gpuPool is a pool on the first GPU; the test is skipped where there is none.
func gpuPool(t testing.TB, s *Session) *Pool {
	t.Helper()
	return gpuPoolOf(t, s, 256<<20)
}

// gpuPoolOf is gpuPool with room for so many bytes: where it has none left, blocks are used again on which work is under way.
func gpuPoolOf(t testing.TB, s *Session, maxBytes uint64) *Pool {
	t.Helper()
	if err := mempool.Device.Probe(""); err != nil {
		t.Skip(err)
	}
	return createPool(t, s, mempool.PoolSpec{Name: t.Name(), Kind: mempool.Device, MaxBytes: maxBytes})
}

// needsWords skips the test where streams of the first GPU cannot wait for words.
func needsWords(t testing.TB) {
	t.Helper()
	d, err := mempool.FindDevice("")
	require.NoError(t, err)
	words, err := d.SupportsStreamMemOps()
	require.NoError(t, err)
	register, _, err := d.SupportsHostRegister()
	require.NoError(t, err)
	if !words || !register {
		t.Skip("the device has no stream memory operations")
	}
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

// blocked makes the device stream of a lease's memory wait until the fence is reached.
func blocked(t testing.TB, l *Lease, c *mempool.Clock, at mempool.Fence) {
	t.Helper()
	needsWords(t)
	m, err := l.Memory()
	require.NoError(t, err)
	stop(t, m.Queue(), c, at)
}

// gpuContext is the first GPU's context until the test is over.
func gpuContext(t testing.TB) *cuda.Context {
	t.Helper()
	d, err := mempool.FindDevice("")
	require.NoError(t, err)
	ctx, err := d.Retain()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ctx.Close()) })
	return ctx
}

// unreached is a fence that the session's clock has yet to reach.
func unreached(t testing.TB, s *Session) (*mempool.Clock, mempool.Fence) {
	t.Helper()
	clock, err := s.Clock()
	require.NoError(t, err)
	word, err := clock.Word()
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
	svc := newService(t)
	s := open(t, svc)
	p := gpuPoolOf(t, s, 2<<20)
	clock, stuck := unreached(t, s)
	ctx := context.Background()

	l := allocate(t, s, p, 1<<20)
	blocked(t, l, clock, stuck)
	src := random(1<<20, 1)
	want := bytes.Clone(src)
	require.NoError(t, l.CopyFrom(0, src)) // the GPU has not begun
	clear(src)                             // and src may be used again
	require.NoError(t, l.Publish(mempool.Publication{Name: "x"}))
	got, err := s.Get(ctx, "x", false, 0)
	require.NoError(t, err)
	require.Len(t, got.Info().Wait, 1, "the content is not complete")

	w := allocate(t, s, p, 1<<20) // written, released unfinished, written by the next
	require.NoError(t, w.CopyFrom(0, want))
	require.NoError(t, w.Release(false))
	next := allocate(t, s, p, 1<<20)
	require.Equal(t, w.Info().Block, next.Info().Block)
	require.Len(t, next.Info().Wait, 1)
	require.NoError(t, next.Fill(0, 1<<20, 1))

	require.NoError(t, clock.Reach(stuck))
	dst := make([]byte, 1<<20)
	require.NoError(t, got.CopyTo(dst, 0))
	assert.True(t, bytes.Equal(want, dst))
	release(t, got)
	release(t, next)
}

// A driver call takes as long as all the rest of a transfer in the service.
func TestNoStreamWaitsForWhoAsksForBytesThatTheCPUCannotReach(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p := gpuPoolOf(t, s, 4096)
	w := hire(t, svc)
	first := allocate(t, s, p, 4096)
	publish(t, first, mempool.Publication{Name: "x"})
	reader := w.get(t, "x", false)
	release(t, first)
	done := w.fence()
	require.NoError(t, reader.ReleaseAt(false, []mempool.Fence{done}))
	require.NoError(t, s.Unpublish("x"))
	l := allocate(t, s, p, 4096)
	require.Equal(t, []mempool.Fence{done}, l.Info().Wait)
	b, err := l.Bytes()
	require.NoError(t, err)
	assert.Nil(t, b)
	m, err := l.Memory()
	require.NoError(t, err)
	clock, err := s.Clock()
	require.NoError(t, err)
	now, err := clock.Signal(m.Queue())
	require.NoError(t, err)
	if now != nil {
		assert.NoError(t, clock.Page().Await(context.Background(), *now, 10*time.Second), "the device stream waits for a reader, for nothing")
	}
	w.reach(done)
	release(t, l)
}

func TestAGPUBlockIsFreedOnlyWhenItsWorkIsDone(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p := gpuPool(t, s)
	clock, stuck := unreached(t, s)
	l := allocate(t, s, p, 1<<20)
	blocked(t, l, clock, stuck)
	require.NoError(t, l.Fill(0, 1<<20, 1))
	release(t, l)
	n, err := s.TrimPool(p.info.ID, 0)
	require.NoError(t, err)
	assert.Zero(t, n)
	inUse, err := p.DriverInUse()
	require.NoError(t, err)
	assert.EqualValues(t, 1<<20, inUse)
	other := allocate(t, s, p, 2<<20) // making memory does not wait for the device stream
	release(t, other)
	require.NoError(t, clock.Reach(stuck))
	all, err := s.Allocate(context.Background(), p.info.ID, mempool.Bytes(256<<20), patience)
	require.NoError(t, err)
	release(t, all)
}

func TestAStreamOfTheCallersIsAQueue(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p := gpuPool(t, s)
	needsWords(t)
	clock, err := s.Clock()
	require.NoError(t, err)
	ctx := context.Background()
	l := allocate(t, s, p, 1<<20)
	gpu := gpuContext(t)
	stream, err := gpu.NewStream()
	require.NoError(t, err)
	q := mempool.StreamQueue(gpu, stream)

	src := random(1<<20, 3)
	require.NoError(t, l.CopyFrom(0, src))
	require.NoError(t, l.WaitOn(ctx, q), "our copy comes first")
	ptr, err := l.Pointer()
	require.NoError(t, err)
	assert.NotZero(t, ptr)
	require.NoError(t, stream.Memset8(cuda.DevicePtr(ptr), 9, 100))
	require.NoError(t, l.Publish(mempool.Publication{Name: "x", Completion: mempool.Completion{After: []mempool.Queue{q}}}))
	copy(src, bytes.Repeat([]byte{9}, 100))
	dst := make([]byte, 1<<20)
	require.NoError(t, l.CopyTo(dst, 0), "after what the queue did")
	assert.True(t, bytes.Equal(src, dst))
	got, err := s.Get(ctx, "x", false, 0)
	require.NoError(t, err)
	require.NoError(t, got.WaitOn(ctx, q))
	require.NoError(t, got.ReleaseAfter(q))
	release(t, l)
	require.NoError(t, clock.Forget(ctx, q))
	require.NoError(t, stream.Close())
}

func TestOneFenceStandsForSeveralQueues(t *testing.T) {
	svc := newService(t)
	s, other := open(t, svc), open(t, svc)
	p := gpuPool(t, s)
	needsWords(t)
	gpu := gpuContext(t)
	l := allocate(t, s, p, 1<<20)
	m, err := l.Memory()
	require.NoError(t, err)
	clock, err := s.Clock()
	require.NoError(t, err)
	theirs, stuck := unreached(t, other)
	ctx := t.Context()
	o := l.ordering()
	none, err := o.AfterOne(ctx, m.Queue())
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
	one, err := o.AfterOne(ctx, m.Queue(), queues...)
	require.NoError(t, err)
	over, died := clock.Page().Over(*one)
	assert.False(t, over, "the second queue has not come so far")
	assert.False(t, died)
	require.NoError(t, theirs.Reach(stuck))
	require.NoError(t, clock.Await(ctx, *one))
	over, died = clock.Page().Over(*one)
	assert.True(t, over)
	assert.False(t, died)
	release(t, l)
}

func TestASessionOfThisProcessEndsAtOnceAndIsReclaimedWhenItsWorkIsDone(t *testing.T) {
	svc := newService(t)
	s, other := open(t, svc), open(t, svc)
	p := gpuPool(t, s)
	clock, stuck := unreached(t, other)
	l := allocate(t, s, p, 256<<20)
	blocked(t, l, clock, stuck)
	require.NoError(t, l.Fill(0, 256<<20, 1))
	reclaimed := s.End(nil)
	select {
	case <-reclaimed:
		t.Fatal("the GPU still has to write the memory")
	default:
	}
	assert.Equal(t, reclaimed, s.End(nil), "again")
	st := svc.Stats()
	assert.Zero(t, st.Leases)
	assert.EqualValues(t, 256<<20, st.Pools[0].Held, "nobody else gets it")
	_, err := other.Allocate(context.Background(), p.info.ID, mempool.Bytes(1), 0)
	assert.ErrorIs(t, err, mempool.ErrLimit)
	require.NoError(t, clock.Reach(stuck))
	<-reclaimed
	release(t, allocate(t, other, p, 256<<20))
	checkBooks(t, svc)
}
