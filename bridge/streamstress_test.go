package bridge

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
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

// stressFrames returns how many frames a stress test sends: the value of POOLBRIDGE_STRESS_FRAMES, or else a small number.
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

// stress is a test with one producer and four consumers. The test kills consumers at random and starts them again.
type stress struct {
	*testing.T
	*rig
	frames int
	full   mempool.FullPolicy
	pool   *Pool
	ch     *Channel
	kills  atomic.Int64
	last   atomic.Bool // few frames are left, so the test kills no more consumers, and a consumer takes these frames

	mu   sync.Mutex
	seen map[int]int // how often each frame was acknowledged
}

func newStress(t *testing.T, spec mempool.PoolSpec, mode mempool.ChannelMode, full mempool.FullPolicy) (*stress, *Client) {
	r := start(t, server.Config{}, unhurried)
	c := dial(t, r.path)
	s := &stress{T: t, rig: r, frames: stressFrames(t), full: full, seen: make(map[int]int)}
	s.pool = createPool(t, c, spec)
	s.ch = makeChannel(t, c, s.pool, mempool.ChannelSpec{Mode: mode, Capacity: 8, Full: full})
	return s, c
}

// stressed runs a test for each kind of memory and each policy of a full channel.
func stressed(t *testing.T, mode mempool.ChannelMode, f func(s *stress, c *Client) (dropped uint64)) {
	kinds(t, func(t *testing.T, spec mempool.PoolSpec) {
		for _, full := range []mempool.FullPolicy{mempool.Block, mempool.Fail, mempool.DropOldest, mempool.Latest} {
			t.Run(string(full), func(t *testing.T) {
				t.Parallel()
				s, c := newStress(t, spec, mode, full)
				if dropped := f(s, c); full == mempool.Block || full == mempool.Fail {
					assert.Zero(t, dropped)
				}
				s.clean(c, spec.MaxBytes)
			})
		}
	})
}

// patiently returns a function that calls `publish`, [Channel.Publish] or [Publisher.Publish]. If the channel has the policy Fail and is
// full, `publish` fails, and the returned function tries again.
func (s *stress) patiently(publish publishing) publishing {
	return func(ctx context.Context, l *Lease, o mempool.FrameOptions) (uint64, error) {
		for {
			seq, err := publish(ctx, l, o)
			if s.full != mempool.Fail || !errors.Is(err, ErrLimit) {
				return seq, err
			}
			runtime.Gosched()
		}
	}
}

// life runs one consumer, and kills it after a random number of frames. If the channel ends before the consumer has had this number of
// frames, the consumer runs until the channel ends. The consumer's frames must come in order. In a broadcast, only frames that were reported
// as dropped may be missing. life calls the function `ready` when the consumer is about to join.
func (s *stress) life(random *rand.Rand, broadcast bool, ready func()) (ended bool) {
	c := spawn(s, "consume", s.path, nil)
	defer func() { _ = c.cmd.Wait() }()
	left := 20 + random.IntN(max(min(s.frames, 2000), s.frames/25))
	last := 0
	for c.lines.Scan() {
		line := c.lines.Text()
		switch line {
		case "ready":
			ready()
			continue
		case "ended":
			return true
		}
		var n, seq, dropped int
		if _, err := fmt.Sscanf(line, "got %d %d %d", &n, &seq, &dropped); !assert.NoError(s, err, line) {
			return true
		}
		if broadcast && last != 0 {
			assert.Equal(s, last+1+dropped, seq)
		}
		if broadcast {
			assert.Equal(s, n, seq)
		} else {
			assert.LessOrEqual(s, n, seq, "a queue skips numbers")
		}
		if s.full == mempool.Block || s.full == mempool.Fail {
			assert.Zero(s, dropped)
		}
		last = seq
		s.mu.Lock()
		s.seen[n]++
		s.mu.Unlock()
		if left--; left <= 0 && !s.last.Load() {
			_ = c.cmd.Process.Signal(syscall.SIGKILL)
			s.kills.Add(1)
			left = math.MaxInt // frames that the consumer has printed before its death still count
		}
	}
	return false
}

// run sends all frames through a channel with four consumers, and returns how many frames the channel dropped, as the service reports it. It
// begins when the consumers are about to join: with some kinds of memory, they need seconds to start.
func (s *stress) run(c *Client, broadcast bool) (dropped uint64) {
	var consumers, ready sync.WaitGroup
	for i := range 4 {
		ready.Add(1)
		begun := sync.OnceFunc(ready.Done)
		consumers.Go(func() {
			defer begun()
			random := rand.New(rand.NewPCG(uint64(i), 5))
			for !s.life(random, broadcast, begun) {
			}
		})
	}
	ready.Wait()
	random := rand.New(rand.NewPCG(99, 5))
	ctx, start := context.Background(), time.Now()
	p := publisher(s, s.ch, 20000)
	for n := 1; n <= s.frames; n++ {
		s.last.Store(n > s.frames-100)
		if n%4 == 0 {
			require.NoError(s, sendFrameBy(ctx, s.patiently(s.ch.Publish), s.pool, uint64(n), 8+random.IntN(40000), mempool.FrameOptions{}))
		} else {
			require.NoError(s, sendLoanBy(ctx, s.patiently(p.Publish), p, uint64(n)))
		}
	}
	for info, err := range c.Channels(ctx) {
		require.NoError(s, err)
		dropped = info.Dropped
	}
	require.NoError(s, s.ch.Close(ctx))
	consumers.Wait()
	s.Logf("%d frames, %d dropped, %d consumers killed, %v", s.frames, dropped, s.kills.Load(), time.Since(start).Round(time.Millisecond))
	return dropped
}

// clean asserts that the pool has only free blocks, and that the other sessions have ended.
func (s *stress) clean(c *Client, bytes uint64) {
	s.Helper()
	ctx := context.Background()
	all, err := s.pool.Allocate(ctx, mempool.Bytes(bytes)) // succeeds when the processes are gone and all work is done
	require.NoError(s, err)
	require.NoError(s, all.Release(false))
	for done := false; !done; done = s.sessions() == 1 { // the service may still be ending a session
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
	stressed(t, mempool.Broadcast, func(s *stress, c *Client) uint64 { return s.run(c, true) })
}

func TestEveryFrameOfAQueueIsAcknowledgedOrDropped(t *testing.T) {
	stressed(t, mempool.WorkQueue, func(s *stress, c *Client) uint64 {
		dropped := s.run(c, false)
		var lost []string
		for n := 1; n <= s.frames; n++ {
			if s.seen[n] == 0 {
				lost = append(lost, fmt.Sprint(n))
			}
		}
		assert.LessOrEqual(s, uint64(len(lost)), dropped, "lost: %.2000s", strings.Join(lost, " "))
		// A killed consumer may have printed a frame and not acknowledged it. In this case the frame went back to the queue, and the channel may
		// then have dropped it. So this frame is not lost, but counts as dropped.
		assert.LessOrEqual(s, dropped, uint64(len(lost))+uint64(s.kills.Load()), "frames that a consumer got count as dropped")
		return dropped
	})
}
