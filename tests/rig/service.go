package rig

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// patience is how long a test waits for something that should happen at once.
const patience = time.Minute

// Root returns the folder of the checkout.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// Poolsvc returns the path of the built program.
func Poolsvc(t testing.TB) string {
	t.Helper()
	path := os.Getenv("POOLBRIDGE_TEST_POOLSVC")
	if path == "" {
		path = filepath.Join(Root(), "bin", "poolsvc")
	}
	_, err := os.Stat(path)
	require.NoError(t, err, "poolsvc is not built: run `make build`, or set POOLBRIDGE_TEST_POOLSVC")
	return path
}

// Service is a poolsvc in a separate process.
type Service struct {
	Socket  string
	Process *os.Process

	cmd    *exec.Cmd
	log    lockedBuffer
	exited chan struct{}
	exit   error
}

// lockedBuffer has the output of a process that is still running.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Serve starts `poolsvc serve` with args, on a new socket that no other service uses. It stops the service when the test ends. The service has
// a guard only if args say so: a test that kills [Service.Process] kills the service.
func Serve(t testing.TB, args ...string) *Service {
	t.Helper()
	return ServeBy(t, []string{Poolsvc(t)}, args...)
}

// ServeBy is like Serve, but the command runs poolsvc: the path of a program, with the arguments before `serve`.
func ServeBy(t testing.TB, command []string, args ...string) *Service {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb") // the path of t.TempDir may be too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return serve(t, command, filepath.Join(dir, "run", "poolsvc.sock"), args...)
}

// ServeAt is like Serve, but the service listens on the given socket.
func ServeAt(t testing.TB, socket string, args ...string) *Service {
	t.Helper()
	return serve(t, []string{Poolsvc(t)}, socket, args...)
}

func serve(t testing.TB, command []string, socket string, args ...string) *Service {
	t.Helper()
	s := &Service{Socket: socket, exited: make(chan struct{})}
	s.cmd = exec.Command(command[0], slices.Concat(command[1:], []string{"serve", "--verbose", "--guard=false", "--socket", socket}, args)...)
	s.cmd.Stderr = &s.log
	require.NoError(t, s.cmd.Start())
	s.Process = s.cmd.Process
	go func() {
		s.exit = s.cmd.Wait()
		close(s.exited)
	}()
	t.Cleanup(func() {
		s.Stop(t)
		if t.Failed() {
			t.Logf("poolsvc said:\n%s", &s.log)
		}
	})
	s.client(t) // client waits until the service listens
	return s
}

// Log returns what the service has logged so far.
func (s *Service) Log() string { return s.log.String() }

// Said waits until the service has logged a text, and returns the log.
func (s *Service) Said(t testing.TB, text string) string {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(s.Log(), text) }, patience, time.Millisecond, "%s, in:\n%s", text, &s.log)
	return s.Log()
}

// Stop interrupts the service and waits until it has ended.
func (s *Service) Stop(t testing.TB) {
	t.Helper()
	_ = s.Process.Signal(syscall.SIGTERM) // Signal fails if the service has ended
	select {
	case <-s.exited:
	case <-time.After(patience):
		_ = s.Process.Kill()
		assert.Fail(t, "poolsvc did not end when it was told to")
	}
}

// Ended waits until the service and its guards have ended, and returns how the process that the test started did.
func (s *Service) Ended(t testing.TB) error {
	t.Helper()
	select {
	case <-s.exited:
	case <-time.After(patience):
		require.Fail(t, "poolsvc, its guard or its service has not ended", s.Log())
	}
	return s.exit
}

// ServiceOf returns the process of the service that a guard runs, and not the child that Go begins for a moment to learn what the kernel can do.
func ServiceOf(t testing.TB, guard int) (pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", guard))
		require.NoError(t, err)
		for _, thread := range threads {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", guard, thread.Name()))
			for _, child := range strings.Fields(string(text)) {
				given, _ := os.ReadFile("/proc/" + child + "/environ")
				if strings.Contains(string(given), fmt.Sprintf("LISTEN_PID=from-%d\x00", guard)) {
					pid, err = strconv.Atoi(child)
					require.NoError(t, err)
					return true
				}
			}
		}
		return false
	}, time.Minute, time.Millisecond)
	return pid
}

// Kill kills the service without a warning.
func (s *Service) Kill(t testing.TB) {
	t.Helper()
	require.NoError(t, s.Process.Kill())
	_ = s.Ended(t) // it was killed
}

// client waits until the service listens, and connects once.
func (s *Service) client(t testing.TB) {
	t.Helper()
	s.with(t, func(*bridge.Client, context.Context) {})
}

func (s *Service) with(t testing.TB, f func(*bridge.Client, context.Context)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := bridge.Dialer{Wait: true}.Dial(ctx, s.Socket)
	require.NoError(t, err, "poolsvc said:\n%s", &s.log)
	f(c, ctx)
	require.NoError(t, c.Close())
}

// Stats returns the service's accounting.
func (s *Service) Stats(t testing.TB) (stats mempool.ServiceStats) {
	t.Helper()
	s.with(t, func(c *bridge.Client, ctx context.Context) {
		var err error
		stats, err = c.Stats(ctx)
		require.NoError(t, err)
	})
	return stats
}

// StatsWhen waits until the function settled accepts the accounting of the service, and returns the accounting. Requests on another
// connection and the end of a process change the accounting only after a delay.
func (s *Service) StatsWhen(t testing.TB, settled func(mempool.ServiceStats) bool) (stats mempool.ServiceStats) {
	t.Helper()
	s.with(t, func(c *bridge.Client, ctx context.Context) {
		for {
			now, err := c.Stats(ctx)
			require.NoError(t, err, "the accounting does not become what it should be; it was %+v", stats)
			if stats = now; settled(stats) {
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	return stats
}

// Idle waits until no session has a lease.
func (s *Service) Idle(t testing.TB) mempool.ServiceStats {
	t.Helper()
	return s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.Leases == 0 })
}
