package integration

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

func killService(t *testing.T, guard int) {
	t.Helper()
	require.NoError(t, syscall.Kill(rig.ServiceOf(t, guard), syscall.SIGKILL))
}

// seeded returns a source of the moments at which a test kills. Its seed is $POOLBRIDGE_STRESS_SEED, or else a random one; the log says which.
func seeded(t *testing.T) *rand.Rand {
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("POOLBRIDGE_STRESS_SEED"), fmt.Sprint(rand.Uint64())), 10, 64)
	require.NoError(t, err)
	t.Logf("POOLBRIDGE_STRESS_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestClientsGoOnWhenTheServiceIsKilled(t *testing.T) {
	kills, err := strconv.Atoi(cmp.Or(os.Getenv("POOLBRIDGE_STRESS_KILLS"), "20"))
	require.NoError(t, err)
	random := seeded(t)
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--pool", "name=p,kind=host,max=64MiB")
	holder := dial(t, s)
	p, err := holder.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	held, err := p.TryAllocate(t.Context(), mempool.Bytes(4096))
	require.NoError(t, err)
	require.NoError(t, held.Fill(context.Background(), 0, 4096, 42))
	var rounds atomic.Int64
	stop := make(chan struct{})
	var work sync.WaitGroup
	for n := range 4 {
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
				l, err := p.Allocate(ctx, mempool.Bytes(uint64(1+i%5)*4096))
				if !assert.NoError(t, err) {
					return
				}
				name := fmt.Sprint("n", n)
				if !assert.NoError(t, l.Publish(ctx, mempool.Publication{Name: name, Replace: true})) {
					return
				}
				r, err := c.Get(ctx, name, bridge.LeaseOptions{})
				if !assert.NoError(t, err) || !assert.NoError(t, r.Release(false)) || !assert.NoError(t, l.Release(false)) {
					return
				}
				rounds.Add(1)
			}
		})
	}
	sent, received := stream(t, s, "q", mempool.WorkQueue, stop, &work)
	seen, heard := stream(t, s, "b", mempool.Broadcast, stop, &work)
	var pauses []time.Duration
	for range kills {
		time.Sleep(time.Duration(random.Int64N(int64(100 * time.Millisecond))))
		killService(t, s.Process.Pid)
		began := time.Now()
		_, err := holder.Stats(t.Context())
		require.NoError(t, err)
		pauses = append(pauses, time.Since(began))
	}
	close(stop)
	work.Wait()
	slices.Sort(pauses)
	t.Log(rounds.Load(), "rounds,", sent.Load(), received.Load(), "frames of a queue,", seen.Load(), heard.Load(), "of a broadcast; pauses", pauses[len(pauses)/2], pauses[len(pauses)-1])
	assert.Equal(t, sent.Load(), received.Load())
	assert.Equal(t, seen.Load(), heard.Load())
	assert.Positive(t, rounds.Load())
	require.NoError(t, held.Release(false))
	stats := s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.Leases == 0 })
	assert.Zero(t, stats.Leases)
	assert.NotContains(t, s.Log(), "contradicts")
}

// stream publishes numbered frames in a new channel until `stop` is closed, and checks that a consumer gets each frame once, in order.
func stream(t *testing.T, s *rig.Service, name string, mode mempool.ChannelMode, stop <-chan struct{}, work *sync.WaitGroup) (sent, received *atomic.Uint64) {
	sent, received = new(atomic.Uint64), new(atomic.Uint64)
	producer, consumer := dial(t, s), dial(t, s)
	p, err := producer.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	ch, err := producer.CreateChannel(t.Context(), mempool.ChannelSpec{Name: name, Pool: p.Info().ID, Mode: mode, Capacity: 8})
	require.NoError(t, err)
	to, err := consumer.TryOpenChannel(t.Context(), name)
	require.NoError(t, err)
	work.Go(func() {
		for f, err := range to.Frames(context.Background(), mempool.SubscribeOptions{Oldest: true}) {
			if err != nil {
				assert.ErrorIs(t, err, bridge.ErrClosed, name)
				return
			}
			b := make([]byte, 8)
			if !assert.NoError(t, f.Lease.CopyTo(context.Background(), b, 0)) || !assert.Equal(t, received.Add(1), binary.LittleEndian.Uint64(b), name) || !assert.NoError(t, f.Release()) {
				return
			}
		}
	})
	if mode == mempool.Broadcast {
		require.NoError(t, ch.WaitForConsumers(t.Context(), 1))
	}
	work.Go(func() {
		defer func() { assert.NoError(t, ch.Close(context.Background())) }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			l, err := p.Allocate(context.Background(), mempool.Bytes(64))
			if !assert.NoError(t, err, name) {
				return
			}
			n := sent.Add(1)
			if !assert.NoError(t, l.CopyFrom(context.Background(), 0, binary.LittleEndian.AppendUint64(nil, n))) {
				return
			}
			if _, err = ch.Publish(context.Background(), l, mempool.FrameOptions{}); !assert.NoError(t, err, name) {
				return
			}
		}
	})
	return sent, received
}

func TestAServiceThatIsKilledWhileItTakesOverLosesNothing(t *testing.T) {
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--pool", "name=p,kind=host,max=64MiB")
	c := dial(t, s)
	p, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	var leases []*bridge.Lease
	for i := range 200 {
		l, err := p.TryAllocate(t.Context(), mempool.Bytes(4096))
		require.NoError(t, err)
		require.NoError(t, l.Fill(t.Context(), 0, 4096, byte(i)))
		leases = append(leases, l)
	}
	random := seeded(t)
	for range 10 {
		killService(t, s.Process.Pid)
		time.Sleep(time.Duration(random.Int64N(int64(30 * time.Millisecond)))) // while the next one takes over, or before, or after
	}
	stats, err := c.Stats(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, len(leases), stats.Leases)
	for i, l := range leases {
		b, err := l.Bytes(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []byte{byte(i), byte(i)}, []byte{b[0], b[4095]})
		require.NoError(t, l.Release(false))
	}
	stats = s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.Leases == 0 })
	assert.Zero(t, stats.Buffers)
}

func TestClientsGetAnErrorSoonWhenGuardAndServiceAreKilled(t *testing.T) {
	s := rig.Serve(t, "--guard", "--pool", "name=p,kind=host,max=64MiB")
	c, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	pid := rig.ServiceOf(t, s.Process.Pid)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP)) // so that it starts no other guard
	require.NoError(t, s.Process.Kill())
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	began := time.Now()
	_, err = c.Stats(t.Context())
	require.ErrorIs(t, err, bridge.ErrDisconnected)
	t.Log(time.Since(began))
	require.NoError(t, c.Close())
}

// anotherGuard kills the guard, and waits until the service has another one.
func anotherGuard(t *testing.T, s *rig.Service) (guard int) {
	t.Helper()
	was := s.Stats(t).GuardPID
	require.NoError(t, syscall.Kill(int(was), syscall.SIGKILL))
	return int(s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.GuardPID != was }).GuardPID)
}

// ended tells a guard to end, and waits for the end of the service and all its guards.
func ended(t *testing.T, s *rig.Service, guard int) {
	t.Helper()
	require.NoError(t, syscall.Kill(guard, syscall.SIGTERM))
	_ = s.Ended(t) // the first guard was killed
	require.NoFileExists(t, s.Socket)
	assert.NotContains(t, s.Log(), "contradicts")
}

func TestAServiceThatTakesOverOutlivesItsGuardFromTheFirstMoment(t *testing.T) {
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--pool", "name=p,kind=host,max=64MiB")
	c := dial(t, s)
	p, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	l, guard := filled(t, p, 4096, 7), s.Process.Pid
	parent := rig.ServiceOf(t, guard) // of the next guard
	for i := range 10 {
		was := parent
		require.NoError(t, syscall.Kill(was, syscall.SIGKILL))
		require.Eventually(t, func() bool {
			parent = rig.ServiceOf(t, guard)
			return parent != was
		}, time.Minute, time.Millisecond)
		time.Sleep(time.Duration(i) * time.Millisecond) // of the moments that it may die at
		require.NoError(t, syscall.Kill(guard, syscall.SIGKILL))
		was = guard
		guard = int(s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.GuardPID != 0 && int(st.GuardPID) != was }).GuardPID)
		has(t, l, 4096, 7)
	}
	ended(t, s, guard)
}

func TestAServiceStartsAnotherGuardWhenItsGuardDies(t *testing.T) {
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--pool", "name=p,kind=host,max=64MiB")
	c, stop, work := dial(t, s), make(chan struct{}), sync.WaitGroup{}
	p, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	sent, received := stream(t, s, "q", mempool.WorkQueue, stop, &work)
	seen, heard := stream(t, s, "b", mempool.Broadcast, stop, &work)
	pid, guard := rig.ServiceOf(t, s.Process.Pid), 0
	var leases []*bridge.Lease
	for i := range 10 {
		guard = anotherGuard(t, s)
		leases = append(leases, filled(t, p, 4096, byte(i)))
	}
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.Takeovers == 1 })
	require.NotEqual(t, pid, rig.ServiceOf(t, guard))
	guard = anotherGuard(t, s)
	s.Said(t, fmt.Sprintf("process %d is its guard now", guard))
	stats, err := c.Stats(t.Context())
	require.NoError(t, err)
	assert.Equal(t, mempool.GuardWatches, stats.Guard)
	for i, l := range leases {
		has(t, l, 4096, byte(i))
		require.NoError(t, l.Release(false))
	}
	close(stop)
	work.Wait()
	assert.Equal(t, sent.Load(), received.Load())
	assert.Equal(t, seen.Load(), heard.Load())
	require.NoError(t, c.Close())
	s.Idle(t)
	ended(t, s, guard)
}

func TestAnotherGuardThatIsToldToEndAsSoonAsItIsKnownEndsTheService(t *testing.T) {
	for range 20 {
		s := guarded(t, mempool.Host)
		ended(t, s, anotherGuard(t, s))
	}
}

func TestAServiceThatIsKilledWhileItStartsAnotherGuardLosesNothingOrEverything(t *testing.T) {
	lasted := 0
	for i := range 10 {
		s := guarded(t, mempool.Host)
		c := dial(t, s)
		p, err := c.TryOpenPool(t.Context(), "p")
		require.NoError(t, err)
		l, pid := filled(t, p, 4096, 7), rig.ServiceOf(t, s.Process.Pid)
		require.NoError(t, s.Process.Kill())
		time.Sleep(100*time.Millisecond + time.Duration(i)*2*time.Millisecond) // the service waits 100 ms
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		stats, err := c.Stats(t.Context())
		if err != nil { // it had not begun
			require.ErrorIs(t, err, bridge.ErrDisconnected)
			continue
		}
		lasted++
		has(t, l, 4096, 7)
		require.Equal(t, mempool.GuardWatches, stats.Guard)
		require.NoError(t, c.Close())
		ended(t, s, int(stats.GuardPID))
	}
	t.Log(lasted)
}

func TestASessionWhoseProcessDiedWhileTheServiceWasAwayEnds(t *testing.T) {
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--pool", "name=p,kind=host,max=64MiB")
	script := rig.Python(t).Start(t, `
import poolbridge as pb, sys
c = pb.connect(sys.argv[1])
c.open_pool("p")
l = c.allocate((64,), "uint8")
print("ready", flush=True)
sys.stdin.readline()
`, s.Socket)
	require.Equal(t, "ready", script.Line(t))
	s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.Leases == 1 })
	pid := rig.ServiceOf(t, s.Process.Pid)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	script.Kill(t)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.Leases == 0 && st.Pools[0].Held == 0 })
}

func TestBooksThatWereOverwrittenAreGivenUpWithAReason(t *testing.T) {
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--pool", "name=p,kind=host,max=64MiB")
	c, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	pid := rig.ServiceOf(t, s.Process.Pid)
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	require.NoError(t, err)
	found := false
	for _, fd := range fds {
		path := fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name())
		if to, _ := os.Readlink(path); strings.Contains(to, "poolbridge:books") && !found { // there is a copy for another guard
			out, err := exec.Command(rig.Poolsvc(t), "books", "check", path).CombinedOutput()
			require.NoError(t, err, string(out))
			assert.Contains(t, string(out), "ok: ")
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			require.NoError(t, err)
			_, err = f.WriteAt([]byte("nonsense"), 4096+8)
			require.NoError(t, err)
			require.NoError(t, f.Close())
			out, err = exec.Command(rig.Poolsvc(t), "books", "check", path).CombinedOutput()
			require.Error(t, err)
			assert.Contains(t, string(out), "the books were overwritten")
			found = true
		}
	}
	require.True(t, found)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	_, err = c.Stats(t.Context())
	require.ErrorIs(t, err, bridge.ErrDisconnected)
	require.NoError(t, c.Close())
	s.Said(t, "the books were overwritten")
	fresh := dial(t, s)
	_, err = fresh.TryOpenPool(t.Context(), "p")
	require.NoError(t, err, "the next service makes it anew")
}

//go:embed survive.py
var surviving string

func TestPythonClientsGoOnWhenTheServiceIsKilled(t *testing.T) {
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--pool", "name=p,kind=host,max=64MiB")
	script := rig.Python(t).Start(t, surviving, s.Socket)
	require.Equal(t, "ready", script.Line(t))
	random := seeded(t)
	for range 20 {
		time.Sleep(time.Duration(random.Int64N(int64(100 * time.Millisecond))))
		killService(t, s.Process.Pid)
	}
	script.Say(t, "stop")
	line := script.Line(t)
	assert.Contains(t, line, "True")
	t.Log(line)
	script.End(t)
	s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.Leases == 0 && st.Buffers == 0 })
}

func TestAServiceHasAGuardIfNobodySaysOtherwise(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	guard := exec.Command(rig.Poolsvc(t), "serve", "--socket", socket, "--pool", "name=p,kind=host,max=64MiB")
	require.NoError(t, guard.Start())
	t.Cleanup(func() { _ = guard.Process.Signal(syscall.SIGTERM) })
	useAcross(t, socket, func() {
		said, err := poolsvc(t, "status", "--socket", socket)
		require.NoError(t, err, said)
		assert.Contains(t, said, fmt.Sprintf("guarded by process %d, 0 takeovers so far", guard.Process.Pid))
		said, err = poolsvc(t, "serve", "--socket", socket)
		require.Error(t, err)
		assert.Contains(t, said, "`poolsvc status` names its guard")
		killService(t, guard.Process.Pid)
	})
	require.NoError(t, guard.Process.Signal(syscall.SIGTERM))
	require.NoError(t, guard.Wait())
	require.NoFileExists(t, socket)
}

func TestAServiceOfAProgramHasNoGuard(t *testing.T) {
	for _, flags := range [][]string{{"--private"}, {"--end-fd", "0"}, {"--ready-fd", "1"}} {
		out, err := exec.Command(rig.Poolsvc(t), append([]string{"serve", "--guard"}, flags...)...).CombinedOutput()
		require.Error(t, err)
		assert.Contains(t, string(out), "--guard excludes")
	}
	for _, s := range []*rig.Service{{Socket: startAlone(t, "--private").socket}, rig.Serve(t)} {
		stats := s.Stats(t)
		assert.Empty(t, stats.Guard)
		assert.Zero(t, stats.GuardPID)
	}
}

// takenOver kills the service and waits until another has taken over.
func takenOver(t *testing.T, s *rig.Service) {
	killService(t, s.Process.Pid)
	s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.Takeovers == 1 })
}

func TestASignalToTheGuardEndsTheServiceAndLeavesNothing(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		for _, before := range []func(*testing.T, *rig.Service){func(*testing.T, *rig.Service) {}, takenOver} {
			s := guarded(t, mempool.Host)
			before(t, s)
			c, err := bridge.Dial(t.Context(), s.Socket)
			require.NoError(t, err)
			pid := rig.ServiceOf(t, s.Process.Pid)
			require.NoError(t, s.Process.Signal(sig))
			require.NoError(t, s.Ended(t))
			require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
			require.NoFileExists(t, s.Socket)
			_, err = c.Stats(t.Context())
			require.ErrorIs(t, err, bridge.ErrDisconnected)
			require.NoError(t, c.Close())
		}
	}
}

func TestASignalWhileTheGuardMakesAPauseEndsIt(t *testing.T) {
	s := rig.Serve(t, "--guard", "--guard-quick", "1h", "--pool", "name=p,kind=host,max=64MiB")
	for !strings.Contains(s.Log(), "pause=1s") {
		before := strings.Count(s.Log(), "the service died")
		killService(t, s.Process.Pid)
		require.Eventually(t, func() bool { return strings.Count(s.Log(), "the service died") > before }, time.Minute, time.Millisecond)
	}
	require.NoError(t, s.Process.Signal(syscall.SIGTERM))
	require.NoError(t, s.Ended(t))
}

func TestAStoppedServiceHasNoSuccessorBesideIt(t *testing.T) {
	s := guarded(t, mempool.Host)
	c := dial(t, s)
	pid := rig.ServiceOf(t, s.Process.Pid)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	call := make(chan error, 1)
	go func() {
		_, err := c.Stats(context.Background())
		call <- err
	}()
	require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	require.NoError(t, <-call)
	require.Equal(t, pid, rig.ServiceOf(t, s.Process.Pid), "the guard has started no other")
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	stats, err := c.Stats(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 1, stats.Takeovers)
	require.ErrorIs(t, syscall.Kill(pid, syscall.SIGCONT), syscall.ESRCH, "the guard has reaped it before it started the next")
}

func TestALostGuardIsInTheLogTheEventsAndTheStatus(t *testing.T) {
	program := filepath.Join(t.TempDir(), "poolsvc")
	content, err := os.ReadFile(rig.Poolsvc(t))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, content, 0o700))
	s := rig.ServeBy(t, []string{program}, "--guard")
	service := rig.ServiceOf(t, s.Process.Pid)
	status := func() string {
		out, err := exec.Command(rig.Poolsvc(t), "status", "--socket", s.Socket).CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	assert.NotContains(t, status(), "warning")
	assert.Contains(t, status(), fmt.Sprintf("guarded by process %d,", s.Process.Pid))
	guard := anotherGuard(t, s)
	assert.Contains(t, status(), fmt.Sprintf("guarded by process %d,", guard))
	require.NoError(t, os.Chmod(program, 0o600)) // now it cannot be run
	require.NoError(t, syscall.Kill(guard, syscall.SIGKILL))
	s.Said(t, "the guard of the service is gone")
	assert.Contains(t, status(), "if the service dies now")
	stats := s.Stats(t)
	assert.Equal(t, mempool.GuardLost, stats.Guard)
	assert.Zero(t, stats.GuardPID)
	ended(t, s, service)
}

func TestClientsThatCloseWhileTheServiceIsAwayLeave(t *testing.T) {
	s := guarded(t, mempool.Host)
	c, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	p, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	_, err = p.TryAllocate(t.Context(), mempool.Bytes(64))
	require.NoError(t, err)
	pid := rig.ServiceOf(t, s.Process.Pid)
	require.NoError(t, s.Process.Signal(syscall.SIGSTOP))
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	require.NoError(t, s.Process.Signal(syscall.SIGCONT))
	require.NoError(t, <-closed)
	s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.Leases == 0 })
	assert.NotContains(t, s.Log(), "the connection broke off")
}

func TestTheGuardHearsOnlyItsService(t *testing.T) {
	s := guarded(t, mempool.Host)
	c := dial(t, s)
	text, err := os.ReadFile("/proc/net/unix")
	require.NoError(t, err)
	_, name, found := strings.Cut(string(text), fmt.Sprintf("@poolbridge-guard-%d", s.Process.Pid))
	require.True(t, found)
	name, _, _ = strings.Cut(name, "\n")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer syscall.Close(fd)
	for _, held := range []string{"books", "socket", "pb.1"} {
		to := &syscall.SockaddrUnix{Name: fmt.Sprintf("@poolbridge-guard-%d%s", s.Process.Pid, name)}
		require.NoError(t, syscall.Sendto(fd, []byte("FDSTOREREMOVE=1\nFDNAME="+held), 0, to))
	}
	takenOver(t, s)
	_, err = c.Stats(t.Context())
	require.NoError(t, err)
}

func TestTheSocketThatWasMadeAgainIsTakenOver(t *testing.T) {
	s := guarded(t, mempool.Host)
	require.NoError(t, os.Remove(s.Socket))
	s.Said(t, "the service has made the socket again")
	takenOver(t, s)
	require.NoError(t, os.Remove(s.Socket))
	require.Eventually(t, func() bool { return strings.Count(s.Log(), "the service has made the socket again") == 2 }, time.Minute, time.Millisecond)
	dial(t, s)
}

func TestAGuardNeedsNoReaderOfItsLog(t *testing.T) {
	_, full := fullPipe(t)
	reader, broken, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, reader.Close())
	defer broken.Close()
	for _, log := range []*os.File{full, broken} {
		guard := exec.Command(rig.Poolsvc(t), "serve", "--verbose", "--socket", filepath.Join(t.TempDir(), "s"))
		guard.Stderr = log
		require.NoError(t, guard.Start())
		t.Cleanup(func() { _ = guard.Process.Kill() })
		c, err := bridge.Dialer{Wait: true}.Dial(t.Context(), guard.Args[len(guard.Args)-1])
		require.NoError(t, err)
		killService(t, guard.Process.Pid)
		_, err = c.Stats(t.Context())
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, guard.Process.Signal(syscall.SIGTERM))
		require.NoError(t, guard.Wait())
	}
}
