package mempool

import (
	"bytes"
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/sizeclass"
	"github.com/poolbridge/poolbridge/mempool/hostmem"
)

// gpuBacking makes a backing on the first GPU. It skips the test if there is no GPU.
func gpuBacking(t testing.TB) Backing {
	t.Helper()
	if err := Device.Probe(""); err != nil {
		t.Skip(err)
	}
	a, err := NewBacking(PoolSpec{Name: t.Name(), Kind: Device, MaxBytes: 256 << 20}, hostmem.New())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, a.Close()) })
	return a
}

// take allocates at least n bytes. The memory is freed when the test ends.
func take(t testing.TB, a Backing, n uint64) *deviceAllocation {
	t.Helper()
	m, err := a.Allocate(t.Context(), sizeclass.RoundUp(n, a.Granularity()))
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, m.Synchronize())
		assert.NoError(t, m.Free())
	})
	return m.(*deviceAllocation)
}

// blocked makes the deviceStream of the memory wait until the fence is reached.
func blocked(t testing.TB, m Memory, c *Clock, at Fence) {
	t.Helper()
	q := m.Queue().(*streamQueue)
	if !q.words {
		t.Skip("the device has no stream memory operations")
	}
	require.NoError(t, q.wait(t.Context(), c.Page(), at))
}

// unreached returns a clock, and a fence of this clock that is not reached. When the test ends, a cleanup function marks the fence as
// reached. This happens before the test frees memory that it allocated before the call of unreached.
func unreached(t testing.TB) (*Clock, Fence) {
	t.Helper()
	clock := newClock(t)
	word, err := clock.Word(t.Context())
	require.NoError(t, err)
	at := clock.Next(word)
	t.Cleanup(func() { assert.NoError(t, clock.Reach(at)) })
	return clock, at
}

func TestCopiesToAndFromAGPU(t *testing.T) {
	const size = 70 << 20 // more than all pieces hold
	m := take(t, gpuBacking(t), size)
	for i, n := range []int{0, 1, 511, smallPiece, smallPiece + 1, largePiece - 1, largePiece, largePiece + 1, fetchBytes + 1, 3*largePiece + 3, size - 7} {
		src, dst := random(n, uint64(i)), make([]byte, n)
		require.NoError(t, m.CopyFrom(7, src))
		require.NoError(t, m.CopyTo(dst, 7))
		assert.True(t, bytes.Equal(src, dst), "%d bytes", n)
	}
	require.NoError(t, m.Fill(1000, 3*largePiece, 0xab))
	dst := make([]byte, 3*largePiece)
	require.NoError(t, m.CopyTo(dst, 1000))
	assert.Equal(t, bytes.Repeat([]byte{0xab}, len(dst)), dst)
}

func TestCopiesOfManyGoroutines(t *testing.T) {
	a := gpuBacking(t)
	var all sync.WaitGroup
	for i := range 8 {
		m := take(t, a, 9<<20)
		all.Go(func() {
			src, dst := random(9<<20, uint64(i)), make([]byte, 9<<20)
			for range 4 {
				assert.NoError(t, m.CopyFrom(0, src))
				assert.NoError(t, m.CopyTo(dst, 0))
				assert.True(t, bytes.Equal(src, dst))
			}
		})
	}
	all.Wait()
}

func TestAQueueThatCannotWriteWordsIsWaitedFor(t *testing.T) {
	clock, m := newClock(t), take(t, gpuBacking(t), 1<<20)
	require.NoError(t, m.Fill(0, 1<<20, 7))
	able := m.Queue().(*streamQueue)
	unable := &streamQueue{ctx: able.ctx, stream: able.stream, key: "unable"}
	fence, err := clock.Signal(unable)
	require.NoError(t, err)
	assert.Nil(t, fence, "nothing has to be waited for")
	done, err := able.stream.Query()
	require.NoError(t, err)
	assert.True(t, done)
	var none *Clock
	fence, err = none.Signal(able)
	require.NoError(t, err)
	assert.Nil(t, fence)

	word, err := clock.Word(t.Context())
	require.NoError(t, err)
	later := clock.Next(word)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.ErrorIs(t, unable.wait(ctx, clock.Page(), later), context.Canceled, "the CPU waits in its place")
	require.NoError(t, clock.Reach(later))
	assert.NoError(t, unable.wait(ctx, clock.Page(), later))
}

func BenchmarkCopyFrom(b *testing.B) {
	a := gpuBacking(b)
	for _, size := range []int{4 << 10, 1 << 20, 16 << 20, 64 << 20} {
		m := take(b, a, uint64(size))
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
	}
	b.Run("pinned 16 MiB", func(b *testing.B) { // the upper limit for the other benchmarks
		d := take(b, a, 16<<20)
		mem, err := d.ctx.NewPinned(16 << 20)
		require.NoError(b, err)
		b.SetBytes(16 << 20)
		for b.Loop() {
			require.NoError(b, d.deviceStream.stream.CopyHtoDAsync(d.ptr, mem, 0, 16<<20))
		}
		require.NoError(b, d.Synchronize())
		require.NoError(b, mem.Close())
	})
}

func fmtBytes(n int) string {
	if n < 1<<20 {
		return string(rune('0'+n>>10)) + " KiB"
	}
	return map[int]string{1: "1 MiB", 16: "16 MiB", 64: "64 MiB"}[n>>20]
}
