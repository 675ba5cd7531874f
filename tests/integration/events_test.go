package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// lines starts a poolsvc that runs until the test ends. poolsvc writes one JSON document on each line, and next returns
// the next document.
func lines(t *testing.T, args ...string) (next func() map[string]any) {
	t.Helper()
	c := exec.Command(rig.Poolsvc(t), args...)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGINT)
		assert.NoError(t, c.Wait(), "an interrupt is a way to end it")
	})
	scanner := bufio.NewScanner(out)
	return func() (document map[string]any) {
		t.Helper()
		require.True(t, scanner.Scan(), "it wrote no more")
		require.NoError(t, json.Unmarshal(scanner.Bytes(), &document))
		return document
	}
}

// documents runs a poolsvc to its end, and returns the JSON documents that poolsvc wrote.
func documents(t *testing.T, args ...string) (all []map[string]any) {
	t.Helper()
	c := exec.Command(rig.Poolsvc(t), args...)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	for d := json.NewDecoder(out); d.More(); {
		var one map[string]any
		require.NoError(t, d.Decode(&one))
		all = append(all, one)
	}
	require.NoError(t, c.Wait())
	return all
}

// leaseHolder starts a Python process that leases 1 MiB of the pool "p". It returns when the process has the lease.
func leaseHolder(t *testing.T, s *rig.Service) *exec.Cmd {
	t.Helper()
	c := exec.Command(rig.Python(t).Path, "-c", "import poolbridge, time\nclient = poolbridge.connect()\nclient.open_pool('p')\n"+
		"lease = client.allocate(1 << 20, 'uint8')\nlease[...] = 1\nprint('holds', flush=True)\ntime.sleep(10_000)")
	c.Env = append(os.Environ(), "POOLBRIDGE_SOCKET="+s.Socket)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	require.True(t, bufio.NewScanner(out).Scan(), "it did not get its lease")
	return c
}

func TestSomebodyWhoFollowsEventsSeesAWorkerKilledAndItsMemoryComeBack(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=8MiB")
	next := lines(t, "events", "--follow", "--json", "--kind", "session-ended", "--kind", "memory-reclaimed", "--socket", s.Socket)
	worker := leaseHolder(t, s)
	require.NoError(t, worker.Process.Signal(syscall.SIGKILL))
	_ = worker.Wait()
	pid := float64(worker.Process.Pid)
	of := func(kind string) map[string]any {
		for {
			if e := next(); e["kind"] == kind && e["pid"] == pid {
				return e
			}
		}
	}
	ended := of("session-ended")
	assert.Equal(t, "lost", ended["ending"])
	assert.EqualValues(t, 1<<20, ended["bytes"])
	reclaimed := of("memory-reclaimed")
	assert.Equal(t, ended["session"], reclaimed["session"])
	assert.Positive(t, reclaimed["took_seconds"])
	out, err := poolsvc(t, "events", "--session", fmt.Sprint(ended["session"]), "--kind", "session-ended", "--socket", s.Socket)
	require.NoError(t, err, out)
	assert.Contains(t, out, fmt.Sprintf("pid %d", worker.Process.Pid))
	assert.Contains(t, out, "killed")
}

func TestEventsAreFilteredBySinceKindAndPool(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=1MiB", "--pool", "name=q,kind=host,max=1MiB")
	at := []string{"--json", "--socket", s.Socket}
	made := documents(t, append([]string{"events", "--kind", "pool-made"}, at...)...)
	require.Len(t, made, 2)
	of := documents(t, append([]string{"events", "--pool", "q"}, at...)...)
	assert.Equal(t, made[1:], of)
	after := documents(t, append([]string{"events", "--kind", "pool-made", "--since", fmt.Sprint(made[0]["event"])}, at...)...)
	assert.Equal(t, of, after)
	assert.Len(t, documents(t, append([]string{"events", "--kind", "pool-made", "--since", "24h"}, at...)...), 2)
	assert.Empty(t, documents(t, append([]string{"events", "--kind", "pool-made", "--since", "0s"}, at...)...))
	for _, bad := range [][]string{{"--since", "yesterday"}, {"--since", "-1h"}, {"--kind", "rain"}} {
		out, err := poolsvc(t, append([]string{"events", "--socket", s.Socket}, bad...)...)
		require.Error(t, err)
		assert.Contains(t, out, bad[1])
	}
	out, err := poolsvc(t, "events", "--since", "4711", "--socket", s.Socket)
	require.Error(t, err)
	assert.Contains(t, out, "there is no event 4711 yet")
}

func TestATroubleIsOneLineOfTheLogAndTheSameSentenceAsTheEvent(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=1MiB")
	c, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	pool, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	_, err = pool.TryAllocate(t.Context(), mempool.Bytes(2<<20))
	require.ErrorIs(t, err, bridge.ErrLimit)
	events := documents(t, "events", "--kind", "pool-full", "--json", "--socket", s.Socket)
	require.Len(t, events, 1)
	assert.Equal(t, "p", events[0]["pool"])
	require.NoError(t, c.Close())
	log := s.Said(t, "kind=pool-full")
	assert.Contains(t, log, "level=WARN")
	assert.Contains(t, log, "asked for 2 MiB")
}

func TestAListOfLeasesNamesTheProcess(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=8MiB", "--pool", "name=q,kind=host,max=8MiB")
	worker := leaseHolder(t, s)
	pid := worker.Process.Pid
	out, err := poolsvc(t, "leases", "--socket", s.Socket)
	require.NoError(t, err, out)
	assert.Contains(t, out, fmt.Sprint(pid))
	assert.Regexp(t, ` python[0-9.]* `, out, "the program, without its folder")
	leases := func(filter ...string) []any {
		return documents(t, append([]string{"leases", "--json", "--socket", s.Socket}, filter...)...)[0]["leases"].([]any)
	}
	all := leases()
	require.Len(t, all, 1)
	one := all[0].(map[string]any)
	assert.Equal(t, []any{"p", "write", 1.0 * (1 << 20)}, []any{one["pool"], one["to"], one["bytes"]})
	assert.Contains(t, one["command"], "import poolbridge")
	assert.Equal(t, all, leases("--pool", "p", "--pid", fmt.Sprint(pid), "--user", fmt.Sprint(os.Getuid()), "--session", fmt.Sprint(one["session"])))
	for _, none := range [][]string{{"--pool", "q"}, {"--pid", "1"}, {"--user", "4711"}, {"--user", "daemon"}, {"--session", "0"}} {
		assert.Empty(t, leases(none...), none)
	}
	for bad, says := range map[string]string{"--session=4711": "there is no session 4711", "--pool=nope": `there is no pool "nope"`, "--user=no-body": `no user "no-body"`} {
		out, err := poolsvc(t, "leases", bad, "--socket", s.Socket)
		require.Error(t, err, bad)
		assert.Contains(t, out, says)
	}
	out, err = poolsvc(t, "pools", "--pool", "nope", "--socket", s.Socket)
	require.Error(t, err)
	assert.Contains(t, out, `there is no pool "nope"`)
	out, err = poolsvc(t, "events", "--pool", "nope", "--socket", s.Socket)
	require.NoError(t, err, "it may have been there")
	assert.Equal(t, "no events\n", out)
	out, err = poolsvc(t, "channel", "close", "nope", "--socket", s.Socket)
	require.Error(t, err)
	assert.Equal(t, "poolsvc: there is no channel \"nope\" in a pool that user "+strconv.Itoa(os.Getuid())+" may use\n", out)
	first, err := poolsvc(t, "sessions", "--socket", s.Socket)
	require.NoError(t, err, first)
	assert.Contains(t, strings.Split(first, "\n")[1], fmt.Sprint(pid), "the one that holds most comes first")
	assert.Contains(t, first, "1MiB")
}

func TestAWatchedListShowsWhatComes(t *testing.T) {
	s := rig.Serve(t)
	pools := lines(t, "pools", "--watch=0.1", "--json", "--pool", "late", "--socket", s.Socket)
	sessions := lines(t, "sessions", "--watch=0.1", "--json", "--socket", s.Socket)
	require.Empty(t, pools()["pools"])
	out, err := poolsvc(t, "pool", "create", "name=late,kind=host,max=1MiB", "--socket", s.Socket)
	require.NoError(t, err, out)
	for len(pools()["pools"].([]any)) == 0 { // if the pool never appears, the test hangs
	}
	c, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	shown := func(document map[string]any) bool {
		return slices.ContainsFunc(document["sessions"].([]any), func(one any) bool { return one.(map[string]any)["pid"] == float64(os.Getpid()) })
	}
	for !shown(sessions()) {
	}
	require.NoError(t, c.Close())
	out, err = poolsvc(t, "buffers", "--watch=0", "--socket", s.Socket)
	require.Error(t, err)
	assert.Contains(t, out, "expected 0.1 to 86400 seconds")
}

func TestAnOperatorEndsASessionAndItsMemoryWaitsForTheProcess(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=8MiB")
	worker := leaseHolder(t, s)
	lease := documents(t, "leases", "--json", "--socket", s.Socket)[0]["leases"].([]any)[0].(map[string]any)
	id := fmt.Sprint(lease["session"])
	out, err := poolsvc(t, "session", "end", id, "--socket", s.Socket)
	require.NoError(t, err, out)
	held := func() any {
		return documents(t, "pools", "--json", "--socket", s.Socket)[0]["pools"].([]any)[0].(map[string]any)["held"]
	}
	assert.EqualValues(t, 1<<20, held(), "its process lives")
	ended := documents(t, "events", "--json", "--session", id, "--kind", "session-ended", "--socket", s.Socket)
	require.Len(t, ended, 1)
	assert.Equal(t, "closed", ended[0]["ending"])
	require.NoError(t, worker.Process.Kill())
	_ = worker.Wait()
	require.Eventually(t, func() bool { return held() == 0.0 }, time.Minute, 10*time.Millisecond)
	for bad, want := range map[string]string{id: "has ended already", "4711": "no session ever had", "zero": "no session id"} {
		out, err := poolsvc(t, "session", "end", bad, "--socket", s.Socket)
		require.Error(t, err)
		assert.Contains(t, out, want)
	}
}
