package pattern

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

// timed returns how long the GPU takes for the work that f queues. It measures several runs and
// returns the shortest time, because the GPU is slower in the first runs, and other work can only
// make a run slower.
func (g gpu) timed(b *testing.B, f func() error) time.Duration {
	b.Helper()
	start, err := g.ctx.NewEvent(cuda.EventSpec{Timing: true})
	require.NoError(b, err)
	defer start.Close()
	end, err := g.ctx.NewEvent(cuda.EventSpec{Timing: true})
	require.NoError(b, err)
	defer end.Close()
	best := time.Duration(0)
	for range 5 {
		require.NoError(b, start.Record(g.stream))
		require.NoError(b, f())
		require.NoError(b, end.Record(g.stream))
		require.NoError(b, end.Synchronize())
		d, err := end.ElapsedTime(start)
		require.NoError(b, err)
		if best == 0 || d < best {
			best = d
		}
	}
	return best
}

// BenchmarkVerify8GiB and BenchmarkFill8GiB report how many GB of memory they read or write in a
// second. They also measure how many GB a copy within the GPU reads and writes in a second, and
// report the ratio of the two numbers.
func BenchmarkVerify8GiB(b *testing.B) {
	benchmark(b, func(g gpu, ptr cuda.DevicePtr, n uint64, p Pattern) error {
		r, err := g.Verify(g.stream, ptr, n, p)
		if err == nil {
			err = r.Err()
		}
		return err
	})
}

func BenchmarkFill8GiB(b *testing.B) {
	benchmark(b, func(g gpu, ptr cuda.DevicePtr, n uint64, p Pattern) error {
		return g.Fill(g.stream, ptr, n, p)
	})
}

func benchmark(b *testing.B, f func(g gpu, ptr cuda.DevicePtr, n uint64, p Pattern) error) {
	const size = 8 << 30
	g := onGPU(b)
	free, _, err := g.ctx.MemInfo()
	require.NoError(b, err)
	if free < 2*size+size/8 {
		b.Skipf("needs 17 GiB of GPU memory, %d bytes are free", free)
	}
	ptr, other := g.malloc(b, size), g.malloc(b, size)
	copying := g.timed(b, func() error { return g.stream.CopyDtoDAsync(other, ptr, size) })
	copyRate := 2 * size / copying.Seconds()
	for _, p := range []Pattern{
		Affine{Scale: 1, Offset: 100}, Masked{2, 1337, 0xDEADBEEF}, Affine{Scale: 0.001, Offset: 42, Tolerance: 1e-4},
		Frame{Seq: 1}, Fibonacci{},
	} {
		name, _, _ := p.kernel()
		b.Run(name, func(b *testing.B) {
			n := size / p.ElementBytes()
			require.NoError(b, g.Fill(g.stream, ptr, n, p))
			var d time.Duration
			for b.Loop() {
				d = g.timed(b, func() error { return f(g, ptr, n, p) })
			}
			rate := size / d.Seconds()
			b.ReportMetric(rate/1e9, "GB/s")
			b.ReportMetric(copyRate/1e9, "copy-GB/s")
			b.ReportMetric(rate/copyRate, "of-copy")
		})
	}
}

func BenchmarkTransform8GiB(b *testing.B) {
	const size = 8 << 30
	g := onGPU(b)
	free, _, err := g.ctx.MemInfo()
	require.NoError(b, err)
	if free < size+size/8 {
		b.Skipf("needs 9 GiB of GPU memory, %d bytes are free", free)
	}
	ptr := g.malloc(b, size)
	require.NoError(b, g.Fill(g.stream, ptr, size/4, Affine{Scale: 1}))
	var d time.Duration
	for b.Loop() {
		d = g.timed(b, func() error { return g.Transform(g.stream, ptr, size/4, Transform{Scale: -1}) })
	}
	b.ReportMetric(2*size/d.Seconds()/1e9, "GB/s")
}
