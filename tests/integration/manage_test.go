package integration

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

func poolsvc(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.Command(rig.Poolsvc(t), args...).CombinedOutput()
	return string(out), err
}

func TestAnOperatorMakesTrimsAndDestroysPools(t *testing.T) {
	s := rig.Serve(t)
	out, err := poolsvc(t, "pool", "create", "name=frames,kind=host,max=8MiB", "--socket", s.Socket)
	require.NoError(t, err, out)
	c, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	pool, err := c.TryOpenPool(t.Context(), "frames")
	require.NoError(t, err, "it outlives the command")
	l, err := pool.TryAllocate(t.Context(), mempool.Bytes(1<<20))
	require.NoError(t, err)
	require.NoError(t, l.Release(true))
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool {
		out, err = poolsvc(t, "pool", "trim", "frames", "--socket", s.Socket)
		return err == nil && out == "1 MiB were freed at once\n"
	}, time.Minute, 50*time.Millisecond, out)
	out, err = poolsvc(t, "pool", "destroy", "frames", "--socket", s.Socket)
	require.NoError(t, err, out)
	out, err = poolsvc(t, "pool", "destroy", "frames", "--socket", s.Socket)
	require.Error(t, err)
	assert.Contains(t, out, "not found")
}

func TestAModelIsLoadedFromTheShellAndReadInPython(t *testing.T) {
	python := rig.Python(t)
	s := rig.Serve(t, "--pool", "name=models,kind=host,max=1MiB")
	t.Setenv("POOLBRIDGE_SOCKET", s.Socket)
	header := `{"w":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]},"b":{"dtype":"I32","shape":[],"data_offsets":[8,12]},"__metadata__":{"format":"pt"}}`
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	file = append(append(file, header...), 0, 0x3c, 0, 0x40, 0, 0x42, 0, 0x44, 7, 0, 0, 0)
	path := filepath.Join(t.TempDir(), "m.safetensors")
	require.NoError(t, os.WriteFile(path, file, 0o600))
	load := []string{"load", path, "--name", "m", "--pool", "models"}
	out, err := poolsvc(t, load...)
	require.NoError(t, err, out)
	assert.Contains(t, out, "loaded 2 arrays of 12B as m in ")
	program := "import poolbridge\nwith poolbridge.connect() as c:\n    m = c.get_dict('m')\n    print(m['w'].tolist(), m['b'], c.get('m').metadata['format'])\n    del m\n"
	assert.Equal(t, "[[1.0, 2.0], [3.0, 4.0]] 7 pt\n", python.Run(t, "-c", program))
	out, err = poolsvc(t, load...)
	require.Error(t, err)
	assert.Contains(t, out, "--replace")
	out, err = poolsvc(t, append(load, "--replace", "--verify", "--digests")...)
	require.NoError(t, err, out)
	saved := filepath.Join(t.TempDir(), "saved.safetensors")
	out, err = poolsvc(t, "save", "m", saved)
	require.NoError(t, err, out)
	out, err = poolsvc(t, "load", saved, "--name", "saved", "--pool", "models")
	require.NoError(t, err, out)
	assert.Equal(t, "[[1.0, 2.0], [3.0, 4.0]] 7 pt\n", python.Run(t, "-c", strings.ReplaceAll(program, "'m'", "'saved'")))
	assert.Equal(t, "None\n", python.Run(t, "-c", "import poolbridge\nwith poolbridge.connect() as c:\n    print(c.get('saved').verify())\n"))
	out, err = poolsvc(t, "names")
	require.NoError(t, err)
	assert.Regexp(t, `m +models +\d+ +\d+ +several arrays +client\.get_dict\(NAME\) `, out)
	out, err = poolsvc(t, "buffers", "--json")
	require.NoError(t, err)
	assert.Regexp(t, `"layout_bytes": *[1-9]`, out)
	for _, wrong := range [][]string{load[:2], load[:4], {"load", "/dev/null", "--name", "x", "--pool", "models"}, {"load", path, "--name", "x", "--pool", "none"}} {
		out, err := poolsvc(t, wrong...)
		require.Error(t, err, out)
	}
	long := strings.Replace(header, "format", strings.Repeat("x", 5000), 1)
	require.NoError(t, os.WriteFile(path, append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(long))), long...), file[8+len(header):]...), 0o600))
	out, err = poolsvc(t, "load", path, "--name", "long", "--pool", "models")
	require.Error(t, err)
	assert.Contains(t, out, path+": invalid argument: 2 arrays in one buffer, whose names, shapes and metadata are too long: layout: md[0].k: expected ")
	require.NoError(t, os.Truncate(path, 100))
	out, err = poolsvc(t, "load", path, "--name", "cut", "--pool", "models")
	require.Error(t, err)
	assert.Contains(t, out, path)
	for _, name := range []string{"m", "saved"} {
		out, err = poolsvc(t, "unpublish", name)
		require.NoError(t, err, out)
	}
	assert.Zero(t, s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.Buffers == 0 }).Names)
}

func TestAStoppedTerminalHoldsUpNoModel(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=models,kind=host,max=1MiB")
	header := `{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}`
	path := filepath.Join(t.TempDir(), "m.safetensors")
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header+"12345678"...)
	require.NoError(t, os.WriteFile(path, file, 0o600))
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	defer master.Close()
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	defer terminal.Close()
	require.NoError(t, unix.IoctlSetInt(int(terminal.Fd()), unix.TCXONC, unix.TCOOFF))
	load := exec.Command(rig.Poolsvc(t), "load", path, "--name", "m", "--pool", "models", "--socket", s.Socket)
	load.Env, load.Stderr = append(os.Environ(), "TERM=xterm"), terminal
	require.NoError(t, load.Start())
	soon, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, published := dial(t, s).Get(soon, "m", bridge.LeaseOptions{})
	require.NoError(t, unix.IoctlSetInt(int(terminal.Fd()), unix.TCXONC, unix.TCOON))
	require.NoError(t, published)
	require.NoError(t, load.Wait())
	require.NoError(t, l.Release(false))
}

func TestAModelThatIsLoadedWhileItIsUsedGoesWhenNobodyUsesIt(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=models,kind=host,max=1MiB")
	t.Setenv("POOLBRIDGE_SOCKET", s.Socket)
	header := `{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}`
	path := filepath.Join(t.TempDir(), "m.safetensors")
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header+"12345678"...)
	require.NoError(t, os.WriteFile(path, file, 0o600))
	load := exec.Command(rig.Poolsvc(t), "load", path, "--name", "m", "--pool", "models", "--while-used")
	in, err := load.StdinPipe()
	require.NoError(t, err)
	said, err := load.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, load.Start())
	out := bufio.NewReader(said)
	line, err := out.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "published\n", line)
	listed, err := poolsvc(t, "names")
	require.NoError(t, err)
	assert.Regexp(t, `m +models .* while used`, listed)
	require.NoError(t, in.Close())
	line, err = out.ReadString('\n')
	require.NoError(t, err)
	assert.Regexp(t, "^loaded 1 array", line)
	require.NoError(t, load.Wait())
	assert.Zero(t, s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.Buffers == 0 }).Names)
}

// camera starts a service, and returns it with a client, a pool, and a channel "camera" that the client made. The
// channel has a capacity of two frames.
func camera(t *testing.T) (*rig.Service, *bridge.Client, *bridge.Pool, *bridge.Channel) {
	t.Helper()
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=1MiB")
	c, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	pool, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	ch, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "camera", Pool: pool.Info().ID, Capacity: 2})
	require.NoError(t, err)
	return s, c, pool, ch
}

func TestAnOperatorClosesAChannel(t *testing.T) {
	s, c, _, ch := camera(t)
	out, err := poolsvc(t, "channel", "close", "camera", "--socket", s.Socket)
	require.NoError(t, err, out)
	require.ErrorIs(t, ch.Close(t.Context()), bridge.ErrClosed)
	out, err = poolsvc(t, "channel", "close", "camera", "--socket", s.Socket)
	require.Error(t, err)
	assert.Contains(t, out, `no channel "camera"`)
	require.NoError(t, c.Close())
}

func TestAnOperatorDoesNotDiscardTheFramesOfAClosedBroadcast(t *testing.T) {
	s, c, pool, ch := camera(t)
	sub, err := c.Subscribe(t.Context(), "camera", bridge.SubscribeOptions{})
	require.NoError(t, err)
	l, err := pool.TryAllocate(t.Context(), mempool.Bytes(8))
	require.NoError(t, err)
	_, err = ch.TryPublish(t.Context(), l, mempool.FrameOptions{})
	require.NoError(t, err)
	require.NoError(t, ch.Close(t.Context()))
	out, err := poolsvc(t, "channel", "close", "camera", "--discard", "--socket", s.Socket)
	require.Error(t, err)
	assert.Contains(t, out, `channel "camera" is a broadcast`)
	frames := 0
	for f, err := range sub.Frames(t.Context()) {
		require.NoError(t, err)
		require.NoError(t, f.Release())
		frames++
	}
	assert.Equal(t, 1, frames)
	require.NoError(t, c.Close())
}

func TestAnOperatorDiscardsTheFramesOfAClosedQueueAndNotTheOpenOneOfItsName(t *testing.T) {
	s, c, pool, _ := camera(t)
	queue := func() *bridge.Channel {
		ch, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "q", Pool: pool.Info().ID, Mode: bridge.WorkQueue, Capacity: 2})
		require.NoError(t, err)
		l, err := pool.TryAllocate(t.Context(), mempool.Bytes(8))
		require.NoError(t, err)
		_, err = ch.TryPublish(t.Context(), l, mempool.FrameOptions{})
		require.NoError(t, err)
		return ch
	}
	discard := func() (string, error) {
		return poolsvc(t, "channel", "close", "q", "--discard", "--socket", s.Socket)
	}
	old := queue()
	out, err := discard()
	require.Error(t, err)
	assert.Contains(t, out, `channel "q" is open: close it first`)
	require.NoError(t, old.Close(t.Context()))
	opened := queue()
	out, err = discard()
	require.NoError(t, err, out)
	out, err = poolsvc(t, "events", "--kind", "frame-lost", "--socket", s.Socket)
	require.NoError(t, err, out)
	assert.Contains(t, out, `queue "q" ended with 1 frame`)
	frame, err := func() (*bridge.Frame, error) {
		for f, err := range opened.Frames(t.Context(), bridge.SubscribeOptions{}) {
			return f, err
		}
		return nil, nil
	}()
	require.NoError(t, err)
	require.NoError(t, frame.Release())
	require.NoError(t, c.Close())
}

func TestStatusSaysWhetherTheServiceAnswersAndWhatIsInTrouble(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=1MiB")
	out, err := poolsvc(t, "status", "--socket", s.Socket)
	require.NoError(t, err, out)
	assert.Contains(t, out, "healthy")
	assert.NotContains(t, out, "warning")
	assert.Contains(t, out, "; 0 sessions, 1 pool\n", "its own does not count, nor that of the service")
	c, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	pool, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	_, err = pool.TryAllocate(t.Context(), mempool.Bytes(1<<20))
	require.NoError(t, err)
	out, err = poolsvc(t, "status", "--json", "--socket", s.Socket)
	require.NoError(t, err, out)
	var said struct {
		Sessions int
		Warnings []string
	}
	require.NoError(t, json.Unmarshal([]byte(out), &said))
	assert.Equal(t, 1, said.Sessions)
	require.Len(t, said.Warnings, 1)
	assert.Contains(t, said.Warnings[0], "pool p: 1MiB of 1MiB are in use")
	require.NoError(t, c.Close())
	out, err = poolsvc(t, "status", "--timeout", "1h", "--socket", filepath.Join(t.TempDir(), "none"))
	require.Error(t, err)
	assert.Contains(t, out, "not healthy: no service is running", "it says so at once")
}

func TestAServiceThatTakesNoMoreSessionsIsHealthy(t *testing.T) {
	s := rig.Serve(t, "--limit", "sessions=1")
	c, err := bridge.Dial(t.Context(), s.Socket)
	for errors.Is(err, bridge.ErrLimit) { // the session of the rig counts until it has ended
		c, err = bridge.Dial(t.Context(), s.Socket)
	}
	require.NoError(t, err)
	out, err := poolsvc(t, "status", "--socket", s.Socket)
	require.NoError(t, err, out)
	assert.Contains(t, out, "warning: the service has reached its limit of sessions")
	out, err = poolsvc(t, "status", "--json", "--socket", s.Socket)
	require.NoError(t, err, out)
	var said struct{ Warnings []string }
	require.NoError(t, json.Unmarshal([]byte(out), &said))
	assert.Len(t, said.Warnings, 1)
	require.NoError(t, c.Close())
}

func TestStatusAndChannelShowNameTheConsumerThatHoldsAChannelUp(t *testing.T) {
	s, c, pool, ch := camera(t)
	slow, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	theirs, err := slow.TryOpenChannel(t.Context(), "camera")
	require.NoError(t, err)
	next, stop := iter.Pull2(theirs.Frames(t.Context(), mempool.SubscribeOptions{Oldest: true}))
	defer stop()
	for range 2 {
		l, err := pool.TryAllocate(t.Context(), mempool.Bytes(64))
		require.NoError(t, err)
		_, err = ch.Publish(t.Context(), l, mempool.FrameOptions{})
		require.NoError(t, err)
	}
	_, err, ok := next()
	require.NoError(t, err)
	require.True(t, ok)
	out, err := poolsvc(t, "status", "--socket", s.Socket)
	require.NoError(t, err, out)
	assert.Regexp(t, fmt.Sprintf(`warning: session %d \(\Q%[2]s\E, pid %d\) blocks \Q%[2]s\E for \d+s, 1 of 2 frames behind in camera, and 1 more in hand`, slow.Session(), filepath.Base(os.Args[0]), os.Getpid()), out)
	out, err = poolsvc(t, "sessions", "--socket", s.Socket)
	require.NoError(t, err, out)
	rows := strings.Split(out, "\n")
	assert.Regexp(t, fmt.Sprintf(`^ *%d .* blocks \Q%s\E for \d+s$`, slow.Session(), filepath.Base(os.Args[0])), strings.TrimRight(rows[1], " "))
	assert.Regexp(t, fmt.Sprintf(`^ *%d .* \Q%s (session %d), which is behind in channel "camera"\E`, c.Session(), filepath.Base(os.Args[0]), slow.Session()), rows[2])
	out, err = poolsvc(t, "channel", "show", "camera", "--socket", s.Socket)
	require.NoError(t, err, out)
	assert.Contains(t, out, "camera: broadcast of 2 frames, block when it is full; full")
	assert.Regexp(t, fmt.Sprintf(`\Q%s (%d)\E +%d +%d +consumer +1 +0\.0 +1 +1 \(\d+s ago\) +for \d+s`, filepath.Base(os.Args[0]), slow.Session(), os.Getpid(), os.Getuid()), out)
	assert.Regexp(t, `producer +- +0\.0 +2 +2 \(\d+s ago\) +-`, out)
	assert.NotContains(t, out, "\x1b", "no colours in a pipe")
	out, err = poolsvc(t, "channel", "show", "camera", "--json", "--socket", s.Socket)
	require.NoError(t, err, out)
	var shown struct {
		Channel string
		Members []struct {
			Role, Program string
			Lag           int
			Rate          *float64 `json:"frames_per_second"`
			Since         string   `json:"blocks_since"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &shown))
	assert.Equal(t, "camera", shown.Channel)
	require.Len(t, shown.Members, 2)
	assert.Equal(t, []string{"producer", "consumer"}, []string{shown.Members[0].Role, shown.Members[1].Role})
	assert.NotNil(t, shown.Members[0].Rate)
	assert.NotEmpty(t, shown.Members[1].Since)
	out, err = poolsvc(t, "channel", "show", "no-such", "--socket", s.Socket)
	require.Error(t, err)
	assert.Contains(t, out, `there is no channel "no-such" that you may see: poolsvc channels shows`)
	stop()
	require.NoError(t, slow.Close())
	require.NoError(t, c.Close())
}

func TestStatusWarnsOfAFullQueueOnlyWhileItHasNoConsumer(t *testing.T) {
	for full, frames := range map[mempool.FullPolicy]int{mempool.Block: 2, mempool.DropOldest: 5} {
		s := rig.Serve(t, "--pool", "name=p,kind=host,max=1MiB")
		c := dial(t, s)
		pool, err := c.TryOpenPool(t.Context(), "p")
		require.NoError(t, err)
		ch, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "jobs", Pool: pool.Info().ID, Mode: mempool.WorkQueue, Capacity: 2, Full: full})
		require.NoError(t, err)
		for range frames {
			l, err := pool.TryAllocate(t.Context(), mempool.Bytes(64))
			require.NoError(t, err)
			_, err = ch.Publish(t.Context(), l, mempool.FrameOptions{})
			require.NoError(t, err)
		}
		out, err := poolsvc(t, "status", "--socket", s.Socket)
		require.NoError(t, err, out)
		assert.Contains(t, out, "warning: channel jobs: it has 0 consumers; it keeps 2 frames, and "+
			map[mempool.FullPolicy]string{mempool.Block: filepath.Base(os.Args[0]) + " waits for room", mempool.DropOldest: "drops older ones, 3 so far"}[full])
		_, err = dial(t, s).Subscribe(t.Context(), "jobs", mempool.SubscribeOptions{})
		require.NoError(t, err)
		out, err = poolsvc(t, "status", "--socket", s.Socket)
		require.NoError(t, err, out)
		assert.NotContains(t, out, "warning")
	}
}

func TestStatusNamesAWorkerThatHasAFrameForLongWhileOthersGoOn(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=1MiB")
	c := dial(t, s)
	pool, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	ch, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "jobs", Pool: pool.Info().ID, Mode: mempool.WorkQueue, Capacity: 3})
	require.NoError(t, err)
	send := func() {
		l, err := pool.TryAllocate(t.Context(), mempool.Bytes(64))
		require.NoError(t, err)
		_, err = ch.Publish(t.Context(), l, mempool.FrameOptions{})
		require.NoError(t, err)
	}
	work := func() (*bridge.Client, func() (*bridge.Frame, error, bool)) {
		worker := dial(t, s)
		jobs, err := worker.Subscribe(t.Context(), "jobs", mempool.SubscribeOptions{})
		require.NoError(t, err)
		next, stop := iter.Pull2(jobs.Frames(t.Context()))
		t.Cleanup(stop)
		return worker, next
	}
	status := func(args ...string) string {
		out, err := poolsvc(t, append([]string{"status", "--socket", s.Socket}, args...)...)
		require.NoError(t, err, out)
		return out
	}
	hung, take := work()
	send()
	_, err, ok := take()
	require.NoError(t, err)
	require.True(t, ok)
	named := fmt.Sprintf("warning: channel jobs: session %d (%s, pid %d) may hang: it has not acknowledged 1 frame that it took; the newest was published ", hung.Session(),
		filepath.Base(os.Args[0]), os.Getpid())
	assert.NotContains(t, status("--frame-age=1h"), "may hang")
	assert.Contains(t, status("--frame-age=1ns"), named, "no other frame waits")
	send()
	assert.NotContains(t, status("--frame-age=1ns"), "may hang", "all workers may be slow")
	_, takeOther := work()
	f, err, ok := takeOther()
	require.NoError(t, err)
	require.True(t, ok)
	send()
	out := status("--frame-age=1ns")
	assert.Contains(t, out, named, "another worker has taken a newer frame")
	assert.Equal(t, 1, strings.Count(out, "may hang"), out)
	require.NoError(t, f.Release())
}

func TestAStoppedWorkerWhoseSessionIsEndedIsShownUntilItsFrameGoesToAnother(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=1MiB")
	c := dial(t, s)
	pool, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	ch, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "jobs", Pool: pool.Info().ID, Mode: mempool.WorkQueue, Capacity: 3})
	require.NoError(t, err)
	l, err := pool.TryAllocate(t.Context(), mempool.Bytes(64))
	require.NoError(t, err)
	_, err = ch.Publish(t.Context(), l, mempool.FrameOptions{})
	require.NoError(t, err)
	worker := rig.Python(t).Start(t, `
import os, sys, poolbridge
client = poolbridge.connect(sys.argv[1])
jobs = client.subscribe("jobs")
frame = jobs.receive()
print(os.getpid())
sys.stdin.read()
`, s.Socket)
	var pid int
	_, err = fmt.Sscan(worker.Line(t), &pid)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	members := func() (left []mempool.MemberInfo) {
		for m, err := range c.Members(t.Context(), ch.Identity().ID) {
			require.NoError(t, err)
			if m.Role == "consumer" {
				left = append(left, m)
			}
		}
		return left
	}
	shown := members()
	require.Len(t, shown, 1)
	assert.False(t, shown[0].Ended)
	session := shown[0].Session
	out, err := poolsvc(t, "session", "end", fmt.Sprint(session), "--socket", s.Socket)
	require.NoError(t, err, out)
	shown = members()
	require.Len(t, shown, 1)
	assert.Equal(t, []any{session, int32(pid), uint64(1), true}, []any{shown[0].Session, shown[0].PID, shown[0].Lag, shown[0].Ended})
	out, err = poolsvc(t, "channel", "show", "jobs", "--socket", s.Socket)
	require.NoError(t, err, out)
	assert.Regexp(t, fmt.Sprintf(`\(%d\) +%d +%d +consumer, ended +1 `, session, pid, os.Getuid()), out)
	out, err = poolsvc(t, "status", "--socket", s.Socket)
	require.NoError(t, err, out)
	assert.Regexp(t, fmt.Sprintf(`warning: channel jobs: session %d \(.*, pid %d\) has ended, but its process still has 1 frame`, session, pid), out)
	worker.Kill(t)
	for f, err := range ch.Frames(t.Context(), mempool.SubscribeOptions{}) {
		require.NoError(t, err)
		assert.NotEmpty(t, members(), "this consumer")
		require.NoError(t, f.Release())
		break
	}
	assert.Empty(t, members())
}

func TestStatusAndListsCountNoSessionThatOnlyWatches(t *testing.T) {
	s := rig.Serve(t)
	watcher, err := bridge.Dialer{Watch: true}.Dial(t.Context(), s.Socket) // as `poolsvc top` does
	require.NoError(t, err)
	defer watcher.Close()
	counts := func(sessions string, rows int) {
		said, err := poolsvc(t, "status", "--socket", s.Socket)
		require.NoError(t, err, said)
		assert.Contains(t, said, "; "+sessions+", 0 pools")
		said, err = poolsvc(t, "sessions", "--socket", s.Socket)
		require.NoError(t, err, said)
		assert.Equal(t, rows, strings.Count(said, filepath.Base(os.Args[0])), said)
	}
	counts("0 sessions", 0)
	c := dial(t, s)
	counts("1 session", 1)
	var watch []bool
	for one, err := range c.Sessions(t.Context()) {
		require.NoError(t, err)
		watch = append(watch, one.Watches)
	}
	assert.Equal(t, []bool{true, false}, watch)
}
