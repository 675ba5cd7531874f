package integration

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// kills is how often the service is killed for each kind of memory: $POOLBRIDGE_SURVIVE_KILLS, or 6.
func kills(t *testing.T) int {
	text := os.Getenv("POOLBRIDGE_SURVIVE_KILLS")
	if text == "" {
		return 6
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// guarded starts a service with a guard and a pool "p"; `command` is that of [rig.ServeBy], or else that of [rig.Serve].
func guarded(t *testing.T, kind mempool.Kind, command ...string) *rig.Service {
	if err := kind.Probe(""); err != nil {
		t.Skipf("%v (without a GPU, `make simcuda` and tests/simcuda/machine run this)", err)
	}
	return rig.ServeBy(t, append(command, rig.Poolsvc(t))[:max(1, len(command))], "--guard", "--guard-quick", "0s", "--pool", fmt.Sprintf("name=p,kind=%s,max=256MiB", kind))
}

// has checks that a lease has `size` bytes that are all b.
func has(t assert.TestingT, l *bridge.Lease, size int, b byte) bool {
	data := make([]byte, size)
	return assert.NoError(t, l.CopyTo(context.Background(), data, 0)) && assert.True(t, bytes.Equal(data, bytes.Repeat([]byte{b}, size)), "expected %d bytes %d, got %d … %d", size, b, data[0], data[size-1])
}

func filled(t *testing.T, p *bridge.Pool, size int, b byte) *bridge.Lease {
	l, err := p.Allocate(t.Context(), mempool.Bytes(uint64(size)))
	require.NoError(t, err)
	require.NoError(t, l.Fill(context.Background(), 0, uint64(size), b))
	return l
}

//go:embed survivekinds.py
var survivingKinds string

func TestClientsGoOnWithMemoryOfAGPUWhenTheServiceIsKilled(t *testing.T) {
	for _, kind := range lasting {
		t.Run(string(kind), func(t *testing.T) { goOnWithMemoryOfAGPU(t, kind) })
	}
}

func TestABufferThatIsTooLargeForACUDAMemoryPoolGoesOnWhenTheServiceIsKilled(t *testing.T) {
	const size, end = 4<<30 + 1<<20, 1 << 20
	if err := mempool.Device.Probe(""); err != nil {
		t.Skipf("%v (without a GPU, `make simcuda` and tests/simcuda/machine run this)", err)
	}
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--pool", "name=p,kind=device,max=6GiB")
	ctx, c := t.Context(), dial(t, s)
	p, err := c.TryOpenPool(ctx, "p")
	require.NoError(t, err)
	written, err := p.Allocate(ctx, mempool.Bytes(size))
	require.NoError(t, err)
	for _, at := range []uint64{0, size - end} {
		require.NoError(t, written.Fill(ctx, at, end, 7))
	}
	require.NoError(t, written.Publish(ctx, mempool.Publication{Name: "large"}))
	for range 3 {
		reader := dial(t, s)
		read, err := reader.Get(ctx, "large", bridge.LeaseOptions{})
		require.NoError(t, err)
		data := make([]byte, end)
		for _, at := range []uint64{0, size - end} {
			require.NoError(t, read.CopyTo(ctx, data, at))
			assert.Equal(t, bytes.Repeat([]byte{7}, end), data)
		}
		require.NoError(t, read.Release(false))
		killService(t, s.Process.Pid)
	}
	require.NoError(t, written.Release(false))
	require.NoError(t, c.Unpublish(ctx, "large"))
	assert.Eventually(t, func() bool {
		_, err := p.Trim(ctx, 0)
		return assert.NoError(t, err) && s.StatsWhen(t, always).Pools[0].Reserved == 0
	}, 20*time.Second, 10*time.Millisecond)
}

// lasting are the kinds of memory of a GPU that outlive the service.
var lasting = []mempool.Kind{mempool.VMM, mempool.Device, mempool.Pinned}

func goOnWithMemoryOfAGPU(t *testing.T, kind mempool.Kind) {
	s := guarded(t, kind)
	holder := dial(t, s)
	p, err := holder.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	held, kept := filled(t, p, keptBytes, 42), filled(t, p, keptBytes, 43)
	require.NoError(t, kept.Publish(t.Context(), mempool.Publication{Name: "kept", Keep: true}))
	require.NoError(t, kept.Release(false))
	t.Run("under load", func(t *testing.T) { killUnderLoad(t, s, kind, holder, p, held) }) // its clients end with it
	has(t, held, keptBytes, 42)
	require.NoError(t, held.Release(false))
	require.NoError(t, holder.Unpublish(t.Context(), "kept"))
	assert.NotContains(t, s.Log(), "cannot be taken over")
	assert.Eventually(t, func() bool {
		_, err := p.Trim(t.Context(), 0)
		return assert.NoError(t, err) && s.StatsWhen(t, always).Pools[0].Reserved == 0
	}, 20*time.Second, 10*time.Millisecond)
	stats := s.StatsWhen(t, always)
	assert.Zero(t, stats.Leases+stats.Buffers+stats.Pools[0].Blocks, "%+v", stats)
	held = filled(t, p, keptBytes, 44)
	has(t, held, keptBytes, 44)
}

const keptBytes = 1 << 20

func always(mempool.ServiceStats) bool { return true }

// killUnderLoad kills the service again and again while clients work, and checks that they see nothing of it.
func killUnderLoad(t *testing.T, s *rig.Service, kind mempool.Kind, holder *bridge.Client, p *bridge.Pool, held *bridge.Lease) {
	const size = keptBytes
	unit := uint64(64 << 10)
	if kind == mempool.VMM {
		unit = 2 << 20
	}
	var rounds atomic.Int64
	stop := make(chan struct{})
	var work sync.WaitGroup
	for n := range 2 {
		c := dial(t, s)
		p, err := c.TryOpenPool(t.Context(), "p")
		require.NoError(t, err)
		work.Go(func() {
			ctx := context.Background()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				size, b, name := (1+i%5)*4096, byte(i), fmt.Sprint("n", n)
				l, err := p.Allocate(ctx, mempool.Bytes(uint64(size)))
				if !assert.NoError(t, err) || !assert.NoError(t, l.Fill(ctx, 0, uint64(size), b)) || !assert.NoError(t, l.Publish(ctx, mempool.Publication{Name: name, Replace: true})) {
					return
				}
				r, err := c.Get(ctx, name, bridge.LeaseOptions{})
				if !assert.NoError(t, err) || !has(t, r, size, b) || !assert.NoError(t, r.Release(false)) || !assert.NoError(t, l.Release(false)) {
					return
				}
				rounds.Add(1)
			}
		})
	}
	sent, received := stream(t, s, "q", mempool.WorkQueue, stop, &work)
	seen, heard := stream(t, s, "b", mempool.Broadcast, stop, &work)
	script := rig.Python(t).Start(t, survivingKinds, s.Socket)
	require.Equal(t, "ready", script.Line(t))
	var answered, allocated []time.Duration
	random := seeded(t)
	for i := range kills(t) {
		time.Sleep(time.Duration(random.Int64N(int64(100 * time.Millisecond))))
		killService(t, s.Process.Pid)
		began := time.Now()
		_, err := holder.Stats(t.Context())
		require.NoError(t, err)
		answered = append(answered, time.Since(began))
		has(t, held, size, 42)
		late := dial(t, s) // knows nothing of the service that had made the memory
		r, err := late.Get(t.Context(), "kept", bridge.LeaseOptions{})
		require.NoError(t, err)
		has(t, r, size, 43)
		require.NoError(t, r.Release(false))
		began = time.Now()
		fresh, err := p.Allocate(t.Context(), mempool.Bytes(uint64(1+i)*unit)) // a size that no free block has
		require.NoError(t, err)
		allocated = append(allocated, time.Since(began))
		require.NoError(t, fresh.Release(false))
		require.NoError(t, late.Close())
	}
	script.Say(t, "stop")
	turns, err := strconv.Atoi(script.Line(t))
	require.NoError(t, err)
	assert.Positive(t, turns)
	script.End(t)
	close(stop)
	work.Wait()
	slices.Sort(answered)
	slices.Sort(allocated)
	n := len(answered)
	t.Logf("%s: %d kills, %d rounds in Go, %d in Python, %d frames of a queue, %d of a broadcast; until an answer: median %v, longest %v; until new memory: median %v, longest %v", kind, n,
		rounds.Load(), turns, sent.Load(), seen.Load(), answered[n/2], answered[n-1], allocated[n/2], allocated[n-1])
	assert.Equal(t, sent.Load(), received.Load())
	assert.Equal(t, seen.Load(), heard.Load())
	assert.Positive(t, rounds.Load())
}

func TestMemoryOfKindLegacyEndsWithTheServiceAndItsClientsHearIt(t *testing.T) {
	s := guarded(t, mempool.Legacy)
	c := dial(t, s)
	p, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	held, named := filled(t, p, 4096, 1), filled(t, p, 4096, 2)
	require.NoError(t, named.Publish(t.Context(), mempool.Publication{Name: "n", Keep: true}))
	ch, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "q", Pool: p.Info().ID, Mode: mempool.WorkQueue, Capacity: 8})
	require.NoError(t, err)
	_, err = ch.Publish(t.Context(), filled(t, p, 4096, 3), mempool.FrameOptions{})
	require.NoError(t, err)
	killService(t, s.Process.Pid)
	_, err = c.TryGet(t.Context(), "n", bridge.LeaseOptions{})
	require.ErrorIs(t, err, bridge.ErrProducerDied)
	assert.ErrorContains(t, err, "ended with the process of the service")
	require.NoError(t, c.Unpublish(t.Context(), "n"))
	for _, l := range []*bridge.Lease{held, named} {
		require.ErrorIs(t, l.Check(t.Context()), bridge.ErrProducerDied)
		require.NoError(t, l.Release(false))
	}
	frame := filled(t, p, 4096, 4)
	_, err = ch.Publish(t.Context(), frame, mempool.FrameOptions{})
	require.ErrorIs(t, err, bridge.ErrClosed)
	require.NoError(t, frame.Release(false))
	s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.Leases == 0 })
	again := filled(t, p, 4096, 5)
	has(t, again, 4096, 5)
	s.Said(t, "memory of kind legacy ends with the process of the service")
}

func TestAServiceThatIsKilledWhileItTakesOverMemoryOfAGPULosesNothing(t *testing.T) {
	for _, kind := range lasting {
		t.Run(string(kind), func(t *testing.T) {
			s := guarded(t, kind)
			c := dial(t, s)
			p, err := c.TryOpenPool(t.Context(), "p")
			require.NoError(t, err)
			var leases []*bridge.Lease
			random := seeded(t)
			for round := range 3 { // each in a pool of another service
				for i := range 5 {
					leases = append(leases, filled(t, p, 4096<<i, byte(5*round+i)))
				}
				for range 4 {
					killService(t, s.Process.Pid)
					time.Sleep(time.Duration(random.Int64N(int64(30 * time.Millisecond))))
				}
			}
			stats, err := c.Stats(t.Context())
			require.NoError(t, err)
			assert.EqualValues(t, len(leases), stats.Leases)
			for i, l := range leases {
				has(t, l, 4096<<(i%5), byte(i))
				require.NoError(t, l.Release(false))
			}
			s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.Buffers == 0 })
		})
	}
}
