package integration

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

//go:embed stress.py
var stressScript string

const (
	stressConsumers = 4
	stressCapacity  = 8 // frames that the channel keeps
)

// stressFrames returns how many frames the stress tests send: the value of POOLBRIDGE_STRESS_FRAMES, or else 100.
func stressFrames(t *testing.T) int {
	t.Helper()
	text := os.Getenv("POOLBRIDGE_STRESS_FRAMES")
	if text == "" {
		return 100
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// stress is a test with one producer, in Go or in Python, and four consumers in Python. The test kills the Python
// processes at random and starts them again. The producer sends frames in rounds. Each round begins when every consumer
// has subscribed.
type stress struct {
	*testing.T
	python  *rig.Interpreter
	service *rig.Service
	client  *bridge.Client
	pool    *bridge.Pool
	channel *bridge.Channel
	kind    mempool.Kind
	queue   bool
	full    mempool.FullPolicy
	frames  int
	round   int

	mu      sync.Mutex
	change  *sync.Cond
	ready   int          // consumers that listen
	gone    int          // consumers that have ended and will not be started again
	last    bool         // this is the last round, so a consumer is not killed before the channel ends
	sent    map[int]int  // the number in each frame, by sequence number; a killed producer may not have reported some frames
	got     map[int]bool // the numbers that arrived
	excused map[int]bool // numbers that may be lost: the producer was killed, and its GPU work may not have been complete
	killed  int          // producers
	failed  []string     // what consumers said of frames whose content is not complete
	dropped uint64       // frames that the service says were dropped
}

func newStress(t *testing.T, kind mempool.Kind, mode mempool.ChannelMode, full mempool.FullPolicy) *stress {
	s := &stress{T: t, python: rig.Python(t), service: rig.Serve(t), kind: kind, queue: mode == mempool.WorkQueue, full: full, frames: stressFrames(t),
		sent: make(map[int]int), got: make(map[int]bool), excused: make(map[int]bool)}
	s.round = max(50, s.frames/10)
	s.change = sync.NewCond(&s.mu)
	s.client = dial(t, s.service)
	ctx := context.Background()
	var err error
	s.pool, err = s.client.CreatePool(ctx, mempool.PoolSpec{Name: "p", Kind: kind, MaxBytes: 64 << 20})
	require.NoError(t, err)
	s.channel, err = s.client.CreateChannel(ctx, mempool.ChannelSpec{Name: "c", Pool: s.pool.Info().ID, Mode: mode, Capacity: stressCapacity, Full: full})
	require.NoError(t, err)
	return s
}

// drops reports whether a full channel drops frames.
func (s *stress) drops() bool { return s.full == mempool.DropOldest || s.full == mempool.Latest }

// consume starts a consumer, kills the consumer after some lines, and starts the next consumer, until the channel ends.
func (s *stress) consume(random *rand.Rand) {
	defer s.with(func() { s.gone++ })
	for ended := false; !ended; {
		c := s.python.Start(s, stressScript, "consume", s.service.Socket, string(s.kind), fmt.Sprint(1+random.IntN(6)))
		left := 10 + random.IntN(2*s.round)
		l := &life{stress: s}
		for !ended && left > 0 {
			ended = l.line(c.Line(s))
			s.with(func() {
				switch left--; {
				case left == 0 && s.last:
					left = 1
				case left == 0: // the last round must begin with consumers that are not about to be killed
					s.ready--
				}
			})
		}
		if ended {
			c.End(s)
			return
		}
		for _, line := range c.Kill(s) {
			ended = l.line(line)
		}
	}
}

// life checks the lines that one consumer prints.
type life struct {
	*stress
	seq int // sequence number of the last frame
}

// line checks a line of a consumer, and returns true if the line says that the channel has ended. Frames must come in
// order. In a broadcast, the sequence numbers may skip only the frames that the consumer reports as dropped.
func (l *life) line(line string) (ended bool) {
	var n, seq, dropped int
	l.mu.Lock()
	defer l.mu.Unlock()
	switch line {
	case "ended":
		return true
	case "ready":
		l.ready++
		l.change.Broadcast()
		return false
	}
	_, err := fmt.Sscanf(line, "failed %d", &seq)
	failed := err == nil
	if failed {
		l.failed = append(l.failed, line)
	} else {
		_, err = fmt.Sscanf(line, "got %d %d %d", &n, &seq, &dropped)
		assert.NoError(l, err, line)
		l.got[n] = true
		if was, known := l.sent[seq]; known {
			assert.Equal(l, was, n, "frame %d", seq)
		}
	}
	if !l.drops() {
		assert.Zero(l, dropped)
	}
	if known := !failed || !l.drops(); known && !l.queue && l.seq != 0 { // a failed frame's line does not count dropped frames
		assert.Equal(l, l.seq+1+dropped, seq)
	}
	l.seq = seq
	return false
}

func (s *stress) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.change.Broadcast()
}

// send starts the consumers, calls round for each round of frames, and then closes the channel and waits for the
// consumers.
func (s *stress) send(round func(first, last int)) {
	var consumers sync.WaitGroup
	for i := range stressConsumers {
		consumers.Go(func() { s.consume(rand.New(rand.NewPCG(uint64(i), 5))) })
	}
	for first := 1; first <= s.frames; first += s.round {
		last := min(first+s.round-1, s.frames)
		s.mu.Lock()
		for s.ready+s.gone < stressConsumers {
			s.change.Wait()
		}
		s.last = last == s.frames
		s.mu.Unlock()
		round(first, last)
	}
	for info, err := range s.client.Channels(context.Background()) {
		require.NoError(s, err)
		s.dropped = info.Dropped
	}
	require.NoError(s, s.channel.Close(context.Background()))
	consumers.Wait()
}

// complete asserts that every frame of a queue arrived or was dropped, and that all blocks of the pool are free.
func (s *stress) complete() {
	if s.killed == 0 {
		assert.Empty(s, s.failed, "frames that failed, although their producer lived")
	}
	lost := []int{}
	for n := 1; n <= s.frames && s.queue; n++ {
		if !s.got[n] && !s.excused[n] {
			lost = append(lost, n)
		}
	}
	if s.drops() {
		// A producer that the test killed may have dropped one frame without counting it.
		assert.LessOrEqual(s, len(lost), int(s.dropped)+s.killed, "numbers that no consumer got")
	} else {
		assert.Empty(s, lost, "numbers that no consumer got")
		assert.Zero(s, s.dropped)
	}
	all, err := s.pool.Allocate(context.Background(), mempool.Bytes(64<<20)) // Allocate waits until all blocks are free
	require.NoError(s, err)
	require.NoError(s, all.Release(false))
	s.service.StatsWhen(s, func(st mempool.ServiceStats) bool { return st.Leases == 0 && st.Buffers == 0 && st.Pools[0].Held == 0 })
}

// fromPython sends the frames with a producer in Python. In about half of the rounds, fromPython kills the producer in
// the middle of the round.
func (s *stress) fromPython() {
	var p *rig.Script
	random := rand.New(rand.NewPCG(99, 5))
	start := func() {
		p = s.python.Start(s, stressScript, "produce", s.service.Socket, string(s.kind), string(s.full))
		require.Equal(s, "ready", p.Line(s))
	}
	start()
	s.send(func(first, last int) {
		kill := 0
		if random.IntN(2) == 0 {
			kill = first + random.IntN(last-first+1)
		}
		for n := first; n <= last; {
			p.Say(s, fmt.Sprint(n, " ", last))
			for ; n <= last && n != kill; n++ {
				s.said(p.Line(s))
			}
			if n != kill {
				continue
			}
			kill = 0
			s.killed++
			for _, line := range p.Kill(s) {
				n = s.said(line) + 1
			}
			s.with(func() {
				for k := n - stressCapacity; s.kind == mempool.Device && k < n; k++ {
					s.excused[k] = true
				}
			})
			start()
		}
	})
	p.End(s)
}

// said reads a line of the producer. It returns the number that the producer put into the frame.
func (s *stress) said(line string) (n int) {
	var seq int
	_, err := fmt.Sscanf(line, "sent %d %d", &n, &seq)
	require.NoError(s, err, line)
	s.with(func() { s.sent[seq] = n })
	return n
}

// fromGo sends the frames from this process.
func (s *stress) fromGo() {
	random := rand.New(rand.NewPCG(99, 5))
	ctx := context.Background()
	s.send(func(first, last int) {
		for n := first; n <= last; n++ {
			b := make([]byte, 8*(1+random.IntN(5000)))
			for i := 0; i < len(b); i += 8 {
				binary.NativeEndian.PutUint64(b[i:], uint64(n+i))
			}
			l, err := s.pool.Allocate(ctx, mempool.Bytes(uint64(len(b))))
			require.NoError(s, err)
			require.NoError(s, l.CopyFrom(context.Background(), 0, b))
			if !s.queue {
				s.with(func() { s.sent[n] = n })
			}
			seq, err := s.publish(ctx, l, n)
			require.NoError(s, err)
			if !s.queue { // a queue may skip sequence numbers
				assert.EqualValues(s, n, seq)
			}
		}
	})
}

// publish publishes a frame. If the channel is full and its policy is to fail, publish tries again.
func (s *stress) publish(ctx context.Context, l *bridge.Lease, n int) (uint64, error) {
	for {
		seq, err := s.channel.Publish(ctx, l, mempool.FrameOptions{Meta: map[string]any{"n": fmt.Sprint(n)}})
		if s.full != mempool.Fail || !errors.Is(err, bridge.ErrLimit) {
			return seq, err
		}
		runtime.Gosched()
	}
}

func TestConsumersInPythonLoseNoFrameOfKilledProcesses(t *testing.T) {
	kind := mempool.Device
	if kind.Probe("") != nil {
		kind = mempool.Host
	}
	policies := []mempool.FullPolicy{mempool.Block, mempool.Fail, mempool.DropOldest, mempool.Latest}
	if os.Getenv("POOLBRIDGE_STRESS_FRAMES") == "" {
		policies = policies[:1] // make test-stress tests all policies
	}
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		for _, full := range policies {
			for from, run := range map[string]func(*stress){"go": (*stress).fromGo, "python": (*stress).fromPython} {
				t.Run(fmt.Sprintf("%s/%s/%s/from %s", kind, mode, full, from), func(t *testing.T) {
					t.Parallel()
					s := newStress(t, kind, mode, full)
					run(s)
					s.complete()
				})
			}
		}
	}
}
