package mempool

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// gpuPool is a pool on the first GPU; the test is skipped where there is none.
func gpuPool(t testing.TB, s *Session) *Pool {
	t.Helper()
	return gpuPoolOf(t, s, 256<<20)
}

// gpuPoolOf is gpuPool with room for so many bytes: where it has none left, blocks are used again on which work is under way.
func gpuPoolOf(t testing.TB, s *Session, maxBytes uint64) *Pool {
	t.Helper()
	if err := Device.Probe(""); err != nil {
		t.Skip(err)
	}
	return createPool(t, s, PoolSpec{Name: t.Name(), Kind: Device, MaxBytes: maxBytes})
}

// blocked makes the lane of a lease's memory wait until the ticket is reached.
func blocked(t testing.TB, l *Lease, c *Clock, at Ticket) {
	t.Helper()
	m, err := l.Memory()
	require.NoError(t, err)
	q := m.Queue().(*streamQueue)
	if !q.words {
		t.Skip("the device has no stream memory operations")
	}
	require.NoError(t, q.wait(context.Background(), c.Page(), at))
}

// unreached is a ticket that the session's clock has yet to reach.
func unreached(t testing.TB, s *Session) (*Clock, Ticket) {
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

func TestCopiesToAndFromAGPU(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p := gpuPool(t, s)
	const size = 70 << 20 // more pieces than there are
	l := allocate(t, s, p, size)
	for i, n := range []int{0, 1, 511, smallPiece, smallPiece + 1, largePiece - 1, largePiece, largePiece + 1, fetchBytes + 1, 3*largePiece + 3, size - 7} {
		src, dst := random(n, uint64(i)), make([]byte, n)
		require.NoError(t, l.CopyFrom(7, src))
		require.NoError(t, l.CopyTo(dst, 7))
		assert.True(t, bytes.Equal(src, dst), "%d bytes", n)
	}
	require.NoError(t, l.Fill(1000, 3*largePiece, 0xab))
	dst := make([]byte, 3*largePiece)
	require.NoError(t, l.CopyTo(dst, 1000))
	assert.Equal(t, bytes.Repeat([]byte{0xab}, len(dst)), dst)
	release(t, l)
}

func TestCopiesOfManyGoroutines(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p := gpuPool(t, s)
	var all sync.WaitGroup
	for i := range 8 {
		l := allocate(t, s, p, 9<<20)
		all.Go(func() {
			src, dst := random(9<<20, uint64(i)), make([]byte, 9<<20)
			for range 4 {
				assert.NoError(t, l.CopyFrom(0, src))
				assert.NoError(t, l.CopyTo(dst, 0))
				assert.True(t, bytes.Equal(src, dst))
			}
			assert.NoError(t, l.Release(false))
		})
	}
	all.Wait()
}

func TestNothingOfAHandOverOnAGPUWaits(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p := gpuPoolOf(t, s, 3<<20)
	clock, stuck := unreached(t, s)
	ctx := context.Background()

	l := allocate(t, s, p, 1<<20)
	blocked(t, l, clock, stuck)
	src := random(1<<20, 1)
	want := bytes.Clone(src)
	require.NoError(t, l.CopyFrom(0, src)) // the GPU has not begun
	clear(src)                             // and src may be used again
	require.NoError(t, l.Publish(Publication{Name: "x"}))
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

// A driver call takes as long as all the rest of a hand-over in the service.
func TestNoStreamWaitsForWhoAsksForBytesThatTheCPUCannotReach(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p := gpuPoolOf(t, s, 4096)
	w := hire(t, svc)
	first := allocate(t, s, p, 4096)
	publish(t, first, Publication{Name: "x"})
	reader := w.get(t, "x", false)
	release(t, first)
	done := w.ticket()
	require.NoError(t, reader.ReleaseAt(false, []Ticket{done}))
	require.NoError(t, s.Unpublish("x"))
	l := allocate(t, s, p, 4096)
	require.Equal(t, []Ticket{done}, l.Info().Wait)
	b, err := l.Bytes()
	require.NoError(t, err)
	assert.Nil(t, b)
	m, err := l.Memory()
	require.NoError(t, err)
	idle, err := m.Queue().(*streamQueue).stream.Query()
	require.NoError(t, err)
	assert.True(t, idle, "the lane waits for a reader, for nothing")
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
	other := allocate(t, s, p, 2<<20) // making memory does not wait for the lane
	release(t, other)
	require.NoError(t, clock.Reach(stuck))
	all, err := s.Allocate(context.Background(), p.info.ID, Bytes(256<<20), patience)
	require.NoError(t, err)
	release(t, all)
}

func TestAQueueThatCannotWriteWordsIsWaitedFor(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p := gpuPool(t, s)
	clock, err := s.Clock()
	require.NoError(t, err)
	l := allocate(t, s, p, 1<<20)
	require.NoError(t, l.Fill(0, 1<<20, 7))
	m, err := l.Memory()
	require.NoError(t, err)
	able := m.Queue().(*streamQueue)
	unable := &streamQueue{ctx: able.ctx, stream: able.stream, key: "unable"}
	ticket, err := clock.Signal(unable)
	require.NoError(t, err)
	assert.Nil(t, ticket, "nothing has to be waited for")
	done, err := able.stream.Query()
	require.NoError(t, err)
	assert.True(t, done)
	var none *Clock
	ticket, err = none.Signal(able)
	require.NoError(t, err)
	assert.Nil(t, ticket)

	word, err := clock.Word()
	require.NoError(t, err)
	later := clock.Next(word)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.ErrorIs(t, unable.wait(ctx, clock.Page(), later), context.Canceled, "the CPU waits in its place")
	require.NoError(t, clock.Reach(later))
	assert.NoError(t, unable.wait(ctx, clock.Page(), later))
	release(t, l)
}

func TestAStreamOfTheCallersIsAQueue(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p := gpuPool(t, s)
	clock, err := s.Clock()
	require.NoError(t, err)
	ctx := context.Background()
	l := allocate(t, s, p, 1<<20)
	m, err := l.Memory()
	require.NoError(t, err)
	lane := m.(*deviceAllocation).lane
	if !lane.queue.words {
		t.Skip("the device has no stream memory operations")
	}
	stream, err := lane.ctx.NewStream()
	require.NoError(t, err)
	q := StreamQueue(lane.ctx, stream)

	src := random(1<<20, 3)
	require.NoError(t, l.CopyFrom(0, src))
	require.NoError(t, l.WaitOn(ctx, q), "our copy comes first")
	ptr, err := l.Pointer()
	require.NoError(t, err)
	assert.NotZero(t, ptr)
	require.NoError(t, stream.Memset8(m.(*deviceAllocation).ptr, 9, 100))
	require.NoError(t, l.Publish(Publication{Name: "x", Completion: Completion{After: []Queue{q}}}))
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

func TestOneTicketStandsForSeveralQueues(t *testing.T) {
	svc := newService(t)
	s, other := open(t, svc), open(t, svc)
	p := gpuPool(t, s)
	l := allocate(t, s, p, 1<<20)
	m, err := l.Memory()
	require.NoError(t, err)
	lane := m.(*deviceAllocation).lane
	if !lane.queue.words {
		t.Skip("the device has no stream memory operations")
	}
	clock, err := s.Clock()
	require.NoError(t, err)
	theirs, stuck := unreached(t, other)
	ctx := t.Context()
	o := l.ordering()
	none, err := o.AfterOne(ctx, m.Queue())
	require.NoError(t, err)
	assert.Nil(t, none, "nothing was begun")
	var queues []Queue
	for range 2 {
		stream, err := lane.ctx.NewStream()
		require.NoError(t, err)
		defer stream.Close()
		q := StreamQueue(lane.ctx, stream)
		defer func() { assert.NoError(t, clock.Forget(ctx, q)) }()
		queues = append(queues, q)
	}
	require.NoError(t, queues[1].wait(ctx, theirs.Page(), stuck))
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

func TestASessionOfThisProcessEndsAtOnceAndSettlesWhenItsWorkIsDone(t *testing.T) {
	svc := newService(t)
	s, other := open(t, svc), open(t, svc)
	p := gpuPool(t, s)
	clock, stuck := unreached(t, other)
	l := allocate(t, s, p, 256<<20)
	blocked(t, l, clock, stuck)
	require.NoError(t, l.Fill(0, 256<<20, 1))
	settled := s.End(nil)
	select {
	case <-settled:
		t.Fatal("the GPU still has to write the memory")
	default:
	}
	assert.Equal(t, settled, s.End(nil), "again")
	st := svc.Stats()
	assert.Zero(t, st.Leases)
	assert.EqualValues(t, 256<<20, st.Pools[0].Held, "nobody else gets it")
	_, err := other.Allocate(context.Background(), p.info.ID, Bytes(1), 0)
	assert.ErrorIs(t, err, ErrLimit)
	require.NoError(t, clock.Reach(stuck))
	<-settled
	release(t, allocate(t, other, p, 256<<20))
	checkBooks(t, svc)
}

func BenchmarkCopyFrom(b *testing.B) {
	svc := newService(b)
	s := open(b, svc)
	p := gpuPool(b, s)
	for _, size := range []int{4 << 10, 1 << 20, 16 << 20, 64 << 20} {
		l := allocate(b, s, p, uint64(size))
		m, err := l.Memory()
		require.NoError(b, err)
		b.Run(fmtBytes(size), func(b *testing.B) {
			src := random(size, 1)
			b.SetBytes(int64(size))
			for b.Loop() {
				require.NoError(b, m.CopyFrom(0, src))
			}
			require.NoError(b, m.Synchronize())
		})
		b.Run(fmtBytes(size)+"/back", func(b *testing.B) {
			dst := make([]byte, size)
			b.SetBytes(int64(size))
			for b.Loop() {
				require.NoError(b, m.CopyTo(dst, 0))
			}
		})
		release(b, l)
	}
	b.Run("pinned 16 MiB", func(b *testing.B) { // what there is to reach
		l := allocate(b, s, p, 16<<20)
		m, err := l.Memory()
		require.NoError(b, err)
		d := m.(*deviceAllocation)
		mem, err := d.ctx.NewPinned(16 << 20)
		require.NoError(b, err)
		b.SetBytes(16 << 20)
		for b.Loop() {
			require.NoError(b, d.lane.stream.CopyHtoDAsync(d.ptr, mem, 0, 16<<20))
		}
		require.NoError(b, m.Synchronize())
		require.NoError(b, mem.Close())
		release(b, l)
	})
}

func fmtBytes(n int) string {
	if n < 1<<20 {
		return string(rune('0'+n>>10)) + " KiB"
	}
	return map[int]string{1: "1 MiB", 16: "16 MiB", 64: "64 MiB"}[n>>20]
}
