package bridge

import (
	"context"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

// audience is a set of many consumers of one channel in this process.
type audience struct {
	testing.TB
	leave context.CancelFunc
	all   sync.WaitGroup

	mu     sync.Mutex
	change *sync.Cond
	newest []uint64 // by consumer: the number of the last frame that it has taken
}

// listen makes n consumers join the channel. A session may have at most 256 consumers, so listen uses as many sessions as it needs.
func listen(t testing.TB, path string, n int) *audience {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a := &audience{TB: t, leave: cancel, newest: make([]uint64, n)}
	a.change = sync.NewCond(&a.mu)
	var ch *Channel
	for i := range n {
		if i%250 == 0 {
			var err error
			ch, err = dial(t, path).OpenChannel(ctx, "c")
			require.NoError(t, err)
		}
		a.all.Go(func() {
			for f, err := range ch.Frames(ctx, mempool.SubscribeOptions{Oldest: true}) {
				if err != nil {
					assert.ErrorIs(t, err, context.Canceled)
					return
				}
				a.took(i, f.Seq)
				assert.NoError(t, f.Release())
			}
		})
		a.await(1, i, i+1) // wait, so that one consumer joins after the other
	}
	return a
}

func (a *audience) took(i int, number uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	assert.Equal(a, a.newest[i]+1, number)
	a.newest[i] = number
	a.change.Broadcast()
}

// await waits until the consumers from first to last-1 have taken the frame with this number.
func (a *audience) await(number uint64, first, last int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := first; i < last; i++ {
		for a.newest[i] < number {
			a.change.Wait()
		}
	}
}

func TestEachOfManySubscribersOfOneChannelGetsEveryFrame(t *testing.T) {
	n := 100
	if os.Getenv("POOLBRIDGE_STRESS_FRAMES") != "" {
		n = 1000
	}
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Capacity: 4})
	require.NoError(t, sendFrame(t.Context(), p, ch, 1, 8, mempool.FrameOptions{}))
	files, cpu, start := openFiles(t), cpuTime(t), time.Now()
	a := listen(t, path, n)
	t.Logf("%d subscribers: %d descriptors, %v of CPU and %v to join", n, openFiles(t)-files, cpuTime(t)-cpu, time.Since(start))
	const frames = 50
	cpu, start = cpuTime(t), time.Now()
	for number := uint64(2); number <= frames; number++ {
		require.NoError(t, sendFrame(t.Context(), p, ch, number, 8, mempool.FrameOptions{}))
	}
	a.await(frames, 0, n)
	t.Logf("%d frames: %v of CPU and %v", frames, cpuTime(t)-cpu, time.Since(start))
	a.leave()
	a.all.Wait()
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
