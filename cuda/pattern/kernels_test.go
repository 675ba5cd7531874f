package pattern

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

func TestThePTXIsMadeFromTheSource(t *testing.T) {
	source, err := os.ReadFile("kernels.cu")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("the test runs apart from its source: ", err)
	}
	require.NoError(t, err)
	first, rest, _ := strings.Cut(string(ptx), "\n")
	require.Contains(t, first, fmt.Sprintf("%x", sha256.Sum256(source)), "kernels.cu changed: run make ptx")
	require.True(t, strings.HasPrefix(rest, ".version 8.0\n.target sm_70\n"), "the oldest driver must accept it")
}

// gpu is the first GPU, with loaded kernels and a stream.
type gpu struct {
	*Kernels
	ctx    *cuda.Context
	stream *cuda.Stream
}

func onGPU(t testing.TB) gpu {
	t.Helper()
	if err := cuda.Init(); err != nil {
		t.Skip(err)
	}
	d, err := cuda.DeviceAt(0)
	if err != nil {
		t.Skip(err)
	}
	ctx, err := d.Retain()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ctx.Close()) })
	k, err := Load(ctx)
	if errors.Is(err, cuda.ErrNotSupported) || errors.Is(err, cuda.ErrSymbolNotFound) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, k.Close()) })
	s, err := ctx.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return gpu{k, ctx, s}
}

func (g gpu) malloc(t testing.TB, bytes uint64) cuda.DevicePtr {
	t.Helper()
	ptr, err := g.ctx.Malloc(bytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.ctx.MFree(ptr)) })
	return ptr
}

func (g gpu) read(t testing.TB, ptr cuda.DevicePtr, bytes uint64) []byte {
	t.Helper()
	mem := make([]byte, bytes)
	require.NoError(t, g.stream.Synchronize())
	require.NoError(t, g.ctx.CopyDtoH(mem, ptr))
	return mem
}

func TestTheGPUAndTheCPUAgree(t *testing.T) {
	g := onGPU(t)
	const most = 300_017
	ptr := g.malloc(t, most*8+64)
	g.blocks = 3 // so few that each block loops
	for _, p := range samples {
		t.Run(p.String(), func(t *testing.T) {
			size := p.ElementBytes()
			for _, n := range []uint64{1, 2, 3, 4, 5, 7, 8, 31, 255, 1023, 1024, 1025, 4097, 65536, most} {
				for skip := range 16 / size {
					if n > 5000 && skip > 1 {
						continue
					}
					at := ptr + 16 + cuda.DevicePtr(skip*size)
					require.NoError(t, g.stream.Memset8(ptr, 0xa5, most*8+64))
					require.NoError(t, g.Fill(g.stream, at, n, p))
					mem := g.read(t, at-8, n*size+16)
					untouched := []byte{0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5}
					require.Equal(t, untouched, mem[:8], "n=%d skip=%d", n, skip)
					require.Equal(t, untouched, mem[len(mem)-8:], "n=%d skip=%d", n, skip)
					r, err := Verify(mem[8:len(mem)-8], p)
					require.NoError(t, err)
					require.NoError(t, r.Err(), "n=%d skip=%d", n, skip)
					r, err = g.Verify(g.stream, at, n, p)
					require.NoError(t, err)
					require.NoError(t, r.Err(), "n=%d skip=%d", n, skip)
					require.Equal(t, n, r.Elements)
				}
			}
		})
	}
}

// A block of threads processes one part of the memory at a time. The memory of this test has more
// parts than the GPU can run blocks at once. So a block processes several parts in a loop.
func TestTheGPUAndTheCPUAgreeOnMuch(t *testing.T) {
	g := onGPU(t)
	n := g.blocks*threads*threadBytes/4*2 + 12_345
	ptr := g.malloc(t, n*8)
	for _, p := range []Pattern{Affine{Scale: 0.3, Offset: 1}, Masked{2, 1337, 0xDEADBEEF}, Frame{Seq: 5}, Fibonacci{}} {
		require.NoError(t, g.Fill(g.stream, ptr, n, p))
		mem := g.read(t, ptr, n*p.ElementBytes())
		r, err := Verify(mem, p)
		require.NoError(t, err)
		require.NoError(t, r.Err())
		r, err = g.Verify(g.stream, ptr, n, p)
		require.NoError(t, err)
		require.NoError(t, r.Err())
	}
}

func TestTheGPUFindsTheLowestMismatches(t *testing.T) {
	g := onGPU(t)
	all := g.blocks
	const n = 200_003
	ptr := g.malloc(t, n*8+16)
	for _, p := range samples {
		t.Run(p.String(), func(t *testing.T) {
			size := p.ElementBytes()
			at := ptr + cuda.DevicePtr(size)
			for _, wrong := range [][]uint64{
				{0}, {n - 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {0, 1000, 1001, n - 2, n - 1},
				{5, 50_000, 50_001, 70_000, 100_000, 150_000, 199_999, 200_000, 200_001, 200_002},
			} {
				mem := make([]byte, n*size)
				require.NoError(t, Fill(mem, p))
				damage(mem, p, wrong...)
				require.NoError(t, g.ctx.CopyHtoD(at, mem))
				want, err := Verify(mem, p)
				require.NoError(t, err)
				for _, blocks := range []uint64{all, 3} { // few blocks loop more often
					g.blocks = blocks
					got, err := g.Verify(g.stream, at, n, p)
					require.NoError(t, err)
					require.Equal(t, want, got)
					require.Equal(t, wrong[:min(len(wrong), maxMismatches)], indices(got))
				}
			}
		})
	}
}

func TestEverythingWrongIsCountedToo(t *testing.T) {
	g := onGPU(t)
	const n = 1 << 23
	ptr := g.malloc(t, n*8)
	require.NoError(t, g.stream.Memset8(ptr, 0x55, n*8))
	for _, p := range []Pattern{Affine{Scale: 1}, Masked{Scale: 1}, Frame{Seq: 9}, Fibonacci{}} {
		r, err := g.Verify(g.stream, ptr, n, p)
		require.NoError(t, err)
		assert.InDelta(t, n, r.Count, 1, "%v", p) // one element may be right by chance
		assert.Equal(t, []uint64{0, 1, 2, 3, 4, 5, 6, 7}, indices(r), "%v", p)
	}
}

func TestTheGPUTransformsAsTheCPUDoes(t *testing.T) {
	g := onGPU(t)
	ptr := g.malloc(t, 1<<22)
	for _, tr := range []Transform{Double, {Scale: -0.3, Offset: 1.7}, {Offset: 5}} {
		for _, n := range []uint64{1, 3, 6, 1001, 1<<20 - 1} {
			before := make([]byte, n*4)
			require.NoError(t, Fill(before, Affine{Scale: 0.37, Offset: 100}))
			require.NoError(t, g.ctx.CopyHtoD(ptr+4, before))
			require.NoError(t, g.Transform(g.stream, ptr+4, n, tr))
			require.NoError(t, tr.Apply(before))
			require.Equal(t, before, g.read(t, ptr+4, n*4), "%v of %d", tr, n)
		}
	}
}

func TestWhatTheKernelsCannotDoIsRefused(t *testing.T) {
	g := onGPU(t)
	ptr := g.malloc(t, 64)
	require.ErrorIs(t, g.Fill(g.stream, ptr+2, 1, Frame{}), cuda.ErrInvalidValue)
	require.ErrorIs(t, g.Fill(g.stream, ptr+4, 1, Fibonacci{}), cuda.ErrInvalidValue)
	require.ErrorIs(t, g.Fill(g.stream, ptr, 1, Affine{Tolerance: -1}), cuda.ErrInvalidValue)
	require.ErrorIs(t, g.Fill(g.stream, ptr, 1<<54, Frame{}), ErrSize)
	require.ErrorIs(t, g.Transform(g.stream, ptr+1, 1, Double), cuda.ErrInvalidValue)
	require.NoError(t, g.Fill(g.stream, 0, 0, Frame{}), "nothing is nothing")
	_, err := g.Verify(nil, ptr, 0, Frame{})
	require.NoError(t, err)
	require.NoError(t, g.Fill(nil, ptr, 16, Frame{}))
	r, err := g.Verify(nil, ptr, 16, Frame{})
	require.NoError(t, err)
	require.NoError(t, r.Err())
}

func TestManyGoroutinesVerifyAtOnce(t *testing.T) {
	g := onGPU(t)
	const n = 100_000
	ptr := g.malloc(t, n*4)
	require.NoError(t, g.Fill(g.stream, ptr, n, Frame{Seq: 1}))
	require.NoError(t, g.stream.Synchronize())
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			s, err := g.ctx.NewStream()
			if !assert.NoError(t, err) {
				return
			}
			defer s.Close()
			r, err := g.Verify(s, ptr, n, Frame{Seq: uint64(i % 2)})
			assert.NoError(t, err)
			assert.Equal(t, i%2 == 1, r.Count == 0)
		})
	}
	wg.Wait()
}

func TestKernelsMayBeClosedAtAnyTime(t *testing.T) {
	g := onGPU(t)
	ptr := g.malloc(t, 64)
	k, err := Load(g.ctx)
	require.NoError(t, err)
	require.NoError(t, k.Close())
	require.NoError(t, k.Close())
	require.ErrorIs(t, k.Fill(g.stream, ptr, 1, Frame{}), cuda.ErrClosed)
	require.ErrorIs(t, k.Spin(nil, 1), cuda.ErrClosed)
	_, err = k.Verify(g.stream, ptr, 1, Frame{})
	require.ErrorIs(t, err, cuda.ErrClosed)
}

func TestASpinTakesItsTime(t *testing.T) {
	g := onGPU(t)
	require.NoError(t, g.Spin(g.stream, 0))
	require.NoError(t, g.stream.Synchronize())
	for spin := 50 * time.Millisecond; ; spin *= 2 { // longer each time, until the kernel still runs at the query
		start := time.Now()
		require.NoError(t, g.Spin(g.stream, spin))
		done, err := g.stream.Query()
		require.NoError(t, err)
		looked := time.Since(start)
		require.NoError(t, g.stream.Synchronize())
		assert.GreaterOrEqual(t, time.Since(start), spin*98/100)
		if !done {
			return
		}
		require.Greater(t, looked, spin*98/100, "it was over too early")
	}
}

func TestAHoldEndsWhenItsGateOpensOrItsTimeIsUp(t *testing.T) {
	g := onGPU(t)
	gate, err := g.ctx.NewPinned(8)
	require.NoError(t, err)
	defer func() { assert.NoError(t, gate.Close()) }()
	clear(gate.Bytes())
	require.NoError(t, g.Hold(g.stream, gate.DevicePtr(), 10*time.Millisecond))
	require.NoError(t, g.stream.Synchronize(), "nobody opens it")

	require.NoError(t, g.Hold(g.stream, gate.DevicePtr(), time.Minute))
	done, err := g.stream.Query()
	require.NoError(t, err)
	assert.False(t, done)
	gate.Bytes()[0] = 1
	start := time.Now()
	require.NoError(t, g.stream.Synchronize())
	assert.Less(t, time.Since(start), time.Minute)
}
