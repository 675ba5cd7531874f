package bridge

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

// stressFrames is how many frames the stress tests send: POOLBRIDGE_STRESS_FRAMES, or a few.
func stressFrames(t *testing.T) int {
	t.Helper()
	text := os.Getenv("POOLBRIDGE_STRESS_FRAMES")
	if text == "" {
		return 600
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// stress is one producer and four consumers, which are killed and started again at random.
type stress struct {
	*testing.T
	*rig
	frames int
	pool   *Pool
	ch     *Channel
	kills  atomic.Int64
	last   atomic.Bool // few frames are left: no consumer is killed any more, so that one takes them

	mu   sync.Mutex
	seen map[int]int // how often each frame was acknowledged
}

func newStress(t *testing.T, spec mempool.PoolSpec, mode mempool.ChannelMode) (*stress, *Client) {
	r := start(t, server.Config{}, unhurried)
	c := dial(t, r.path)
	s := &stress{T: t, rig: r, frames: stressFrames(t), seen: make(map[int]int)}
	s.pool = createPool(t, c, spec)
	s.ch = makeChannel(t, c, s.pool, mempool.ChannelSpec{Mode: mode, Capacity: 8})
	return s, c
}

// life runs one consumer, which is killed after so many frames, or lives to the end. Its frames must
// come in order and, if none may be missed, without gaps.
func (s *stress) life(random *rand.Rand, gapless bool) (ended bool) {
	c := spawn(s, "consume", s.path, nil)
	defer func() { _ = c.cmd.Wait() }()
	left := 20 + random.IntN(max(min(s.frames, 2000), s.frames/25))
	last := 0
	for c.lines.Scan() {
		line := c.lines.Text()
		switch line {
		case "ready":
			continue
		case "ended":
			return true
		}
		var n, seq, dropped int
		if _, err := fmt.Sscanf(line, "got %d %d %d", &n, &seq, &dropped); !assert.NoError(s, err, line) {
			return true
		}
		if gapless && last != 0 {
			assert.Equal(s, last+1, seq)
			assert.Zero(s, dropped)
		}
		if gapless {
			assert.Equal(s, n, seq)
		} else {
			assert.LessOrEqual(s, n, seq, "a queue skips numbers")
		}
		last = seq
		s.mu.Lock()
		s.seen[n]++
		s.mu.Unlock()
		if left--; left <= 0 && !s.last.Load() {
			_ = c.cmd.Process.Signal(syscall.SIGKILL)
			s.kills.Add(1)
			left = math.MaxInt // the frames that it has printed still count
		}
	}
	return false
}

// run sends every frame to four consumers.
func (s *stress) run(gapless bool) {
	var consumers sync.WaitGroup
	for i := range 4 {
		consumers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 5))
			for !s.life(random, gapless) {
			}
		})
	}
	random := rand.New(rand.NewPCG(99, 5))
	ctx, start := context.Background(), time.Now()
	for n := 1; n <= s.frames; n++ {
		s.last.Store(n > s.frames-100)
		require.NoError(s, sendFrame(ctx, s.pool, s.ch, uint64(n), 8+random.IntN(40000), mempool.FrameOptions{}))
	}
	require.NoError(s, s.ch.Close(ctx))
	consumers.Wait()
	s.Logf("%d frames, %d consumers killed, %v", s.frames, s.kills.Load(), time.Since(start).Round(time.Millisecond))
}

// clean asserts that nothing is left but free blocks.
func (s *stress) clean(c *Client, bytes uint64) {
	s.Helper()
	ctx := context.Background()
	all, err := s.pool.Allocate(ctx, mempool.Bytes(bytes)) // once the processes are gone and all work is done
	require.NoError(s, err)
	require.NoError(s, all.Release(false))
	for done := false; !done; done = s.sessions() == 1 { // the end of a session may still be under way
		_, err = c.Stats(ctx)
		require.NoError(s, err)
	}
	st := s.svc.Stats()
	assert.Zero(s, st.Leases)
	assert.Zero(s, st.Buffers)
	assert.Equal(s, 1, st.Sessions)
	assert.Zero(s, st.Pools[0].Held)
}

func TestNoFrameOfABroadcastIsLostOrTorn(t *testing.T) {
	kinds(t, func(t *testing.T, spec mempool.PoolSpec) {
		s, c := newStress(t, spec, mempool.Broadcast)
		s.run(true)
		s.clean(c, spec.MaxBytes)
	})
}

func TestEveryFrameOfAQueueIsAcknowledged(t *testing.T) {
	kinds(t, func(t *testing.T, spec mempool.PoolSpec) {
		s, c := newStress(t, spec, mempool.WorkQueue)
		s.run(false)
		var lost []string
		for n := 1; n <= s.frames; n++ {
			if s.seen[n] == 0 {
				lost = append(lost, fmt.Sprint(n))
			}
		}
		assert.Empty(t, strings.Join(lost, " "), "lost")
		s.clean(c, spec.MaxBytes)
	})
}
