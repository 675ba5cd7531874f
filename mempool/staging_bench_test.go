package mempool

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

// stagedFrame is the size of the frames that BenchmarkStaging copies.
const stagedFrame = 16 << 20

// plainCopies is the name of the measurement with which the other measurements are compared.
const plainCopies = "16MiB"

// planOf returns a plan with pieces of `mib` MiB. All pieces together have 64 MiB. The parameter `together` is the number of goroutines
// that copy at the same time.
func planOf(mib, together int) stagingPlan {
	p := plan
	p.piece, p.pieces, p.together = uint64(mib)<<20, 64/mib, together
	return p
}

// share reports the bandwidth of frames, and its ratio to the bandwidth of plain copies if plain copies were measured before.
func share(b *testing.B, alone *float64) {
	rate := stagedFrame * float64(b.N) / b.Elapsed().Seconds() / 1e9
	b.ReportMetric(rate, "GB/s")
	b.ReportMetric(b.Elapsed().Seconds()*1e6/float64(b.N), "µs/frame")
	b.ReportMetric(0, "ns/op")
	if *alone > 0 {
		b.ReportMetric(rate / *alone, "of-alone")
	}
}

// BenchmarkStaging measures how fast frames are copied to a GPU. It measures three things: copies from page-locked memory to the GPU;
// copies that the CPU makes to page-locked memory, while the GPU is idle and while the GPU copies; and complete copies from the Go heap to
// the GPU, with several plans.
func BenchmarkStaging(b *testing.B) {
	d, err := FindDevice("")
	if err != nil {
		b.Skip(err)
	}
	ctx, err := d.Retain() // so that the driver keeps the context between pools
	require.NoError(b, err)
	alone := 0.0
	b.Run("alone", func(b *testing.B) { benchmarkCopiesAlone(b, ctx, &alone) })
	b.Run("cpu", func(b *testing.B) { benchmarkFilling(b, ctx, &alone) })
	b.Run("frames", func(b *testing.B) { benchmarkFrames(b, &alone) })
	require.NoError(b, ctx.Close())
}

// dma copies frames from page-locked memory to the GPU.
type dma struct {
	stream *cuda.Stream
	from   *cuda.Pinned
	to     cuda.DevicePtr
	done   [2]*cuda.Event // one for each of the last two frames
	queued int
}

func newDMA(b *testing.B, ctx *cuda.Context) *dma {
	c := new(dma)
	var err error
	c.stream, err = ctx.NewStream()
	require.NoError(b, err)
	c.from, err = ctx.NewPinned(stagedFrame)
	require.NoError(b, err)
	c.to, err = ctx.Malloc(stagedFrame)
	require.NoError(b, err)
	for i := range c.done {
		c.done[i], err = ctx.NewEvent(cuda.EventSpec{})
		require.NoError(b, err)
	}
	b.Cleanup(func() {
		require.NoError(b, c.stream.Synchronize())
		for _, e := range c.done {
			require.NoError(b, e.Close())
		}
		require.NoError(b, c.from.Close())
		require.NoError(b, ctx.MFree(c.to))
		require.NoError(b, c.stream.Close())
	})
	return c
}

// frame queues the copy of a frame, in copies of `piece` bytes.
func (c *dma) frame(b *testing.B, piece uint64, record bool) {
	for off := uint64(0); off < stagedFrame; off += piece {
		require.NoError(b, c.stream.CopyHtoDAsync(c.to+cuda.DevicePtr(off), c.from, off, piece))
		if record {
			require.NoError(b, c.done[c.queued%2].Record(c.stream))
		}
	}
	c.queued++
}

// keepBusy queues frames until two frames are queued or being copied, and returns how many frames it has queued.
func (c *dma) keepBusy(b *testing.B) (n int) {
	for {
		done, err := c.done[c.queued%2].Query()
		require.NoError(b, err)
		if !done || n == 2 {
			return n
		}
		c.frame(b, stagedFrame, true)
		n++
	}
}

func benchmarkCopiesAlone(b *testing.B, ctx *cuda.Context, alone *float64) {
	const ahead = 8
	measure := func(name string, streams int, each func(b *testing.B, c *dma)) {
		b.Run(name, func(b *testing.B) {
			var lines []*dma
			for range streams {
				lines = append(lines, newDMA(b, ctx))
			}
			n := 0
			b.ResetTimer()
			for b.Loop() {
				each(b, lines[n%streams])
				if n++; n%ahead == 0 {
					require.NoError(b, lines[0].stream.Synchronize())
				}
			}
			for _, c := range lines {
				require.NoError(b, c.stream.Synchronize())
			}
			if name == plainCopies {
				*alone = stagedFrame * float64(b.N) / b.Elapsed().Seconds() / 1e9
			}
			share(b, alone)
		})
	}
	measure(plainCopies, 1, func(b *testing.B, c *dma) {
		c.frame(b, stagedFrame, false)
	})
	for _, mib := range []int{1, 2, 4, 8, 16} {
		measure(fmt.Sprintf("event-after-%dMiB", mib), 1, func(b *testing.B, c *dma) { c.frame(b, uint64(mib)<<20, true) })
	}
	clock := newClock(b)
	fence := func(b *testing.B, c *dma) {
		c.frame(b, stagedFrame, true)
		_, err := clock.Signal(&streamQueue{ctx: ctx, stream: c.stream, key: c, words: true})
		require.NoError(b, err)
	}
	measure("event-and-word-after-16MiB", 1, fence)
	measure("event-and-word-after-16MiB/two-streams", 2, fence)
	waiting := func(b *testing.B, c *dma) {
		q := &streamQueue{ctx: ctx, stream: c.stream, key: c, words: true}
		c.frame(b, stagedFrame, true)
		t, err := clock.Signal(q)
		require.NoError(b, err)
		require.NoError(b, q.wait(context.Background(), clock.Page(), *t))
	}
	measure("event-word-and-wait-after-16MiB", 1, waiting)
	require.NoError(b, clock.Quiesce(b.Context()))
}

// benchmarkFilling fills as much page-locked memory as a deviceStream has, while the GPU is idle and while the GPU copies.
func benchmarkFilling(b *testing.B, ctx *cuda.Context, alone *float64) {
	src := random(stagedFrame, 1)
	var to []*cuda.Pinned
	for range largePieces {
		p, err := ctx.NewPinned(stagedFrame)
		require.NoError(b, err)
		to = append(to, p)
	}
	fill := func(how copying, busy bool) func(*testing.B) {
		return func(b *testing.B) {
			c := &copiers{how: how}
			var gpu *dma
			if busy {
				gpu = newDMA(b, ctx)
			}
			c.copy(to[0].Bytes(), src)
			frames, queued := 0, 0
			b.ResetTimer()
			for b.Loop() {
				if busy {
					queued += gpu.keepBusy(b)
				}
				c.copy(to[frames%len(to)].Bytes(), src)
				frames++
			}
			share(b, alone)
			if busy {
				b.ReportMetric(float64(queued)*stagedFrame/b.Elapsed().Seconds()/1e9, "GPU-GB/s")
			}
			c.close()
		}
	}
	for _, stripe := range []int{256 << 10, 1 << 20} {
		for _, together := range []int{1, 2, 4, 8, 12, 14} {
			how := copying{stripe: stripe, together: together, vigil: plan.vigil}
			name := fmt.Sprintf("stripe-%dKiB/%d", stripe>>10, together)
			b.Run(name, fill(how, false))
			if together == 8 {
				b.Run(name+"/GPU-copies", fill(how, true))
			}
		}
	}
	for _, p := range to {
		require.NoError(b, p.Close())
	}
}

// benchmarkFrames copies frames to several buffers, one after the other.
func benchmarkFrames(b *testing.B, alone *float64) {
	one := func(name string, p stagingPlan) {
		b.Run(name, func(b *testing.B) {
			planned(b, p)
			benchmarkPlan(b, alone)
		})
	}
	for _, mib := range []int{1, 2, 4, 8, 16} {
		for _, together := range []int{1, 2, 4, 8} {
			one(fmt.Sprintf("pieces-%dMiB/copiers-%d", mib, together), planOf(mib, together))
		}
	}
	for _, together := range []int{6, 12, 14} {
		one(fmt.Sprintf("pieces-16MiB/copiers-%d", together), planOf(16, together))
	}
	for _, pieces := range []int{2, 3, 6} {
		p := planOf(16, 8)
		p.pieces = pieces
		one(fmt.Sprintf("pieces-16MiB/at-most-%d", pieces), p)
	}
	for _, stripe := range []int{128 << 10, 256 << 10, 512 << 10} {
		p := planOf(16, 8)
		p.stripe = stripe
		one(fmt.Sprintf("pieces-16MiB/stripe-%dKiB", stripe>>10), p)
	}
	for _, vigil := range []time.Duration{0, 400 * time.Microsecond} {
		p := planOf(16, 8)
		p.vigil = vigil
		one(fmt.Sprintf("pieces-16MiB/vigil-%v", vigil), p)
	}
}

func benchmarkPlan(b *testing.B, alone *float64) {
	a, clock, ctx := gpuBacking(b), newClock(b), b.Context()
	src := random(stagedFrame, 1)
	buffers := make([]struct {
		mem  *deviceAllocation
		done []Fence // fences of the previous frame in this buffer
	}, 8)
	for i := range buffers {
		buffers[i].mem = take(b, a, stagedFrame)
	}
	n := 0
	send := func() { // makes the same calls as a lease, in the same order
		f := &buffers[n%len(buffers)]
		n++
		o := &Order{
			Pages: func(context.Context, uint64) (*Page, error) { return clock.Page(), nil },
			Clock: func(context.Context) (*Clock, error) { return clock, nil },
		}
		o.Begin(f.done, false)
		require.NoError(b, o.Before(ctx, f.mem.Queue()))
		o.Use()
		require.NoError(b, f.mem.CopyFrom(0, src))
		var err error
		f.done, err = o.After(ctx, f.mem.Queue())
		require.NoError(b, err)
	}
	for range 16 { // after these calls, all page-locked memory is allocated
		send()
	}
	require.NoError(b, buffers[0].mem.Synchronize())
	b.ResetTimer()
	for b.Loop() {
		send()
	}
	require.NoError(b, buffers[0].mem.Synchronize())
	share(b, alone)
}
