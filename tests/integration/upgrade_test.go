package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

func upgrade(t *testing.T, s *rig.Service, args ...string) (string, error) {
	t.Helper()
	out, err := exec.Command(rig.Poolsvc(t), append([]string{"upgrade", "--socket", s.Socket}, args...)...).CombinedOutput()
	return string(out), err
}

// script writes a program that acts as poolsvc, except for what a case of the shell says.
func script(t *testing.T, branch string) string {
	path := filepath.Join(t.TempDir(), "poolsvc")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, "#!/bin/sh\ncase $1 in\n%s\nesac\nexec %s \"$@\"\n", branch, rig.Poolsvc(t)), 0o700))
	return path
}

func TestClientsGoOnWhenTheServiceIsUpgraded(t *testing.T) {
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--pool", "name=p,kind=host,max=64MiB")
	c, stop, work := dial(t, s), make(chan struct{}), sync.WaitGroup{}
	p, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	l := filled(t, p, 4096, 7)
	sent, received := stream(t, s, "q", mempool.WorkQueue, stop, &work)
	python := rig.Python(t).Start(t, surviving, s.Socket)
	require.Equal(t, "ready", python.Line(t))
	other := filepath.Join(t.TempDir(), "poolsvc") // another file, as that of another version
	content, err := os.ReadFile(rig.Poolsvc(t))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(other, content, 0o700))
	for i, program := range []string{other, rig.Poolsvc(t), other} {
		said, err := upgrade(t, s, program)
		require.NoError(t, err, said)
		assert.Regexp(t, "^"+program+" took over within .*: 1 pool, .* sessions, .* leases, ", said)
		runs, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", rig.ServiceOf(t, s.Process.Pid)))
		require.NoError(t, err)
		assert.Equal(t, program, runs)
		stats, err := c.Stats(t.Context())
		require.NoError(t, err)
		assert.EqualValues(t, i+1, stats.Takeovers)
	}
	said, err := upgrade(t, s, "/bin/true")
	require.Error(t, err, said)
	require.NoError(t, os.Rename(other, other+"2")) // the guard has the program
	killService(t, s.Process.Pid)
	s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.Takeovers == 4 })
	guard := anotherGuard(t, s)
	runs, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", guard))
	require.NoError(t, err)
	assert.Equal(t, other+"2", runs, "the next guard is of the version of the service")
	python.Say(t, "stop")
	assert.Contains(t, python.Line(t), "True")
	python.End(t)
	close(stop)
	work.Wait()
	assert.Equal(t, sent.Load(), received.Load())
	has(t, l, 4096, 7)
	require.NoError(t, l.Release(false))
	require.NoError(t, c.Close())
	s.Idle(t)
	ended(t, s, guard)
}

func TestAServiceGoesOnWhenItsUpgradeIsRefused(t *testing.T) {
	s := guarded(t, mempool.Host)
	c := dial(t, s)
	pid := rig.ServiceOf(t, s.Process.Pid)
	for program, why := range map[string]string{
		"/nothing/there": "no such file",
		"/bin/true":      "cannot take over",
		newer(t):         "these books have format 1 with records of version 2, and this program reads format 1 with records of version 1000",
		script(t, "books) echo 'poolsvc: no' >&2; exit 1;;"): "poolsvc: no",
	} {
		said, err := upgrade(t, s, program)
		require.Error(t, err, said)
		assert.Contains(t, said, "the service goes on")
		assert.Contains(t, said, why)
		assert.Equal(t, pid, rig.ServiceOf(t, s.Process.Pid))
	}
	stats, err := c.Stats(t.Context())
	require.NoError(t, err)
	assert.Zero(t, stats.Takeovers)
}

func TestAServiceGoesOnWhenTheNextProgramRefusesItsConfiguration(t *testing.T) {
	path := configuration(t, "http: {pprof: true}\n")
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--config", path, "--http", "127.0.0.1:0", "--limit", "sessions=9,waits=9")
	c := dial(t, s)
	said, err := upgrade(t, s)
	require.NoError(t, err, said)
	require.NoError(t, os.WriteFile(path, []byte("pools:\n  - nme: p\n"), 0o600))
	pid := rig.ServiceOf(t, s.Process.Pid)
	said, err = upgrade(t, s)
	require.Error(t, err, said)
	assert.Contains(t, said, "the service goes on")
	assert.Contains(t, said, path+`:2: pool 1 of the list: nme: there is no such key`)
	assert.Equal(t, pid, rig.ServiceOf(t, s.Process.Pid))
	stats, err := c.Stats(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 1, stats.Takeovers)
}

// newer builds a poolsvc that reads only books of a later version.
func newer(t *testing.T) string {
	path := filepath.Join(rig.Root(), "mempool/service/ledger/records.go")
	source, err := os.ReadFile(path)
	if _, none := exec.LookPath("go"); none != nil || err != nil {
		t.Skip("this needs Go and the source")
	}
	dir := t.TempDir()
	changed := strings.Replace(string(source), "const Version = 2\n", "const Version = 1000\n", 1)
	require.NotEqual(t, string(source), changed)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "records.go"), []byte(changed), 0o600))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: filepath.Join(dir, "records.go")}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", filepath.Join(dir, "poolsvc"), "./cmd/poolsvc")
	build.Dir = rig.Root()
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	return filepath.Join(dir, "poolsvc")
}

func TestAProgramThatDoesNotServeIsNotTheNextOne(t *testing.T) {
	t.Parallel()
	s := guarded(t, mempool.Host)
	c := dial(t, s)
	p, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	l := filled(t, p, 4096, 7)
	for branch, why := range map[string]string{
		"exit 0":                          "ended before it served: it did not say that it serves",
		"exit 1":                          "ended before it served: exit status 1",
		"exec sleep 300":                  "did not serve within 5s",
		rig.Poolsvc(t) + ` "$@"; exit $?`: "ended before it served: exit status 1", // the service would not be the child of the guard
	} {
		said, err := upgrade(t, s, script(t, "serve) "+branch+";;"))
		require.Error(t, err, branch)
		assert.Contains(t, said, "the other program "+why)
		stats, err := c.Stats(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 1, stats.Leases)
		has(t, l, 4096, 7)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, program := range []string{pipe, script(t, "books) sleep 300;;")} {
		said, err := upgrade(t, s, program)
		require.Error(t, err)
		assert.Contains(t, said, "the service goes on: "+program+" cannot take over: ")
	}
	said, err := upgrade(t, s)
	require.NoError(t, err, said)
	has(t, l, 4096, 7)
}

func TestAServiceAnswersWhileItsGuardIsStopped(t *testing.T) {
	t.Parallel()
	s := guarded(t, mempool.Host)
	c := dial(t, s)
	p, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	for i := range 12 {
		_, err := c.CreateChannel(t.Context(), bridge.ChannelSpec{Name: fmt.Sprint(i), Pool: p.Info().ID, Capacity: 2})
		require.NoError(t, err)
	}
	require.NoError(t, syscall.Kill(s.Process.Pid, syscall.SIGSTOP))
	defer func() { assert.NoError(t, syscall.Kill(s.Process.Pid, syscall.SIGCONT)) }()
	require.NoError(t, c.DestroyPool(t.Context(), "p")) // the guard is to close more descriptors than its socket keeps messages
	_, err = c.Stats(t.Context())
	require.NoError(t, err)
	pid := rig.ServiceOf(t, s.Process.Pid)
	require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
	assert.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ") // its guard, which is stopped, does not wait for it
	}, time.Minute, 10*time.Millisecond, "the service ends, too")
}

func TestOthersAreAnsweredWhileAProgramWaitsForAStoppedGuard(t *testing.T) {
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--pool", "name=p,kind=host,max=64MiB", "--pool", "name=q,kind=host,max=64MiB")
	maker, other := dial(t, s), dial(t, s)
	p, err := maker.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	q, err := maker.TryOpenPool(t.Context(), "q")
	require.NoError(t, err)
	pools, pid := []uint64{p.Info().ID, q.Info().ID}, rig.ServiceOf(t, s.Process.Pid)
	require.NoError(t, syscall.Kill(s.Process.Pid, syscall.SIGSTOP))
	defer func() { assert.NoError(t, syscall.Kill(s.Process.Pid, syscall.SIGCONT)) }()
	made := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < 300 && err == nil; i++ { // more than the queue of the guard's socket holds (net.unix.max_dgram_qlen)
			_, err = maker.CreateChannel(context.Background(), mempool.ChannelSpec{Name: fmt.Sprint(i), Pool: pools[i%2], Capacity: 2})
		}
		made <- err
	}()
	require.Eventually(t, func() bool {
		calls, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
		require.NoError(t, err)
		return slices.ContainsFunc(calls, func(path string) bool {
			text, _ := os.ReadFile(path) // the thread may have ended
			return strings.HasPrefix(string(text), fmt.Sprintf("%d ", syscall.SYS_SENDMSG))
		})
	}, time.Minute, time.Millisecond, "the request of the maker waits")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = other.Stats(ctx)
	require.NoError(t, err)
	require.Empty(t, made)
	require.NoError(t, syscall.Kill(s.Process.Pid, syscall.SIGCONT))
	require.NoError(t, <-made)
	takenOver(t, s)
	there := 0
	for _, err := range other.Channels(t.Context()) {
		require.NoError(t, err)
		there++
	}
	assert.Equal(t, 300, there)
}

func TestAStoppedGuardLosesNothingOfWhatTheServiceMakesMeanwhile(t *testing.T) {
	s := guarded(t, mempool.Host)
	c := dial(t, s)
	p, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	l, pid := filled(t, p, 4096, 7), rig.ServiceOf(t, s.Process.Pid)
	require.NoError(t, syscall.Kill(s.Process.Pid, syscall.SIGSTOP))
	for i := range 4 {
		_, err := c.CreateChannel(t.Context(), bridge.ChannelSpec{Name: fmt.Sprint(i), Pool: p.Info().ID, Capacity: 2})
		require.NoError(t, err)
	}
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.NoError(t, syscall.Kill(s.Process.Pid, syscall.SIGCONT))
	there := 0
	for _, err := range c.Channels(t.Context()) {
		require.NoError(t, err)
		there++
	}
	assert.Equal(t, 4, there)
	assert.EqualValues(t, 1, s.Stats(t).Takeovers)
	has(t, l, 4096, 7)
}

func TestManyUpgradesInARowCostNothing(t *testing.T) {
	s := guarded(t, mempool.Host)
	c := dial(t, s)
	p, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	l, guard := filled(t, p, 4096, 7), s.Process.Pid
	open := func() int {
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", guard))
		require.NoError(t, err)
		return len(files)
	}
	said, err := upgrade(t, s)
	require.NoError(t, err, said)
	before := open()
	for range 24 { // with more deaths in a row, a guard gives up
		said, err := upgrade(t, s)
		require.NoError(t, err, said)
	}
	require.Eventually(t, func() bool { return open() == before }, time.Minute, time.Millisecond)
	has(t, l, 4096, 7)
}

func TestAServiceThatTakesOverServesWithoutAPageIfAnotherProgramHasItsPort(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	require.NoError(t, free.Close())
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--http", address, "--pool", "name=p,kind=host,max=64MiB")
	c := dial(t, s)
	p, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	l, guard := filled(t, p, 4096, 7), s.Process.Pid
	child := rig.ServiceOf(t, guard)
	require.NoError(t, syscall.Kill(guard, syscall.SIGSTOP))
	require.NoError(t, syscall.Kill(child, syscall.SIGKILL))
	require.Eventually(t, func() bool {
		free, err = net.Listen("tcp", address)
		return err == nil
	}, time.Minute, time.Millisecond)
	defer free.Close()
	require.NoError(t, syscall.Kill(guard, syscall.SIGCONT))
	_, err = c.Stats(t.Context())
	require.NoError(t, err)
	has(t, l, 4096, 7)
	page, err := c.Events(t.Context(), 0)
	require.NoError(t, err)
	assert.True(t, slices.ContainsFunc(page.Events, func(e mempool.HistoryEvent) bool { return strings.Contains(e.Text, "no page and no metrics") }))
}

func TestOnlyAProcessOfTheSameContainerUpgradesAService(t *testing.T) {
	s := guarded(t, mempool.Host)
	if out, err := exec.Command("unshare", "--mount", "true").CombinedOutput(); err != nil {
		t.Skipf("unshare: %v: %s", err, out)
	}
	out, err := exec.Command("unshare", "--mount", rig.Poolsvc(t), "upgrade", "--socket", s.Socket).CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "only the service's user, in its container, may ask")
	assert.Zero(t, s.Stats(t).Takeovers)
}

func TestAnUpgradeWithoutAGuardSaysWhatToDo(t *testing.T) {
	said, err := upgrade(t, rig.Serve(t))
	require.Error(t, err)
	assert.Contains(t, said, "it was started with --guard=false")
	m, socket := newManager(t), filepath.Join(t.TempDir(), "s")
	cmd := m.start([]string{"FDSTORE=1"}, "--socket", socket)
	m.heard("READY=1")
	said, err = upgrade(t, &rig.Service{Socket: socket})
	require.Error(t, err)
	assert.Contains(t, said, "systemctl kill --signal=KILL")
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
}
