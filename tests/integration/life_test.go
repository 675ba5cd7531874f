package integration

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// started is a service that the test has started for its own use.
type started struct {
	cmd    *exec.Cmd
	socket string
	end    *os.File // the service ends when this file is closed (--end-fd)
}

// long skips a test that takes long in `make test`. The target test-integration-long of the Makefile runs it.
func long(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: make test-integration-long")
	}
}

// startAlone starts `poolsvc serve` with --ready-fd and --end-fd, and waits until the service says that it is ready.
func startAlone(t *testing.T, args ...string) *started {
	t.Helper()
	return startAloneWith(t, func(*exec.Cmd) {}, args...)
}

// startAloneWith does what startAlone does. Before the start, it calls the function `change` with the command.
func startAloneWith(t *testing.T, change func(*exec.Cmd), args ...string) *started {
	t.Helper()
	ready, readyEnd, err := os.Pipe()
	require.NoError(t, err)
	endEnd, end, err := os.Pipe()
	require.NoError(t, err)
	s := &started{end: end}
	s.cmd = exec.Command(rig.Poolsvc(t), append([]string{"serve", "--ready-fd", "3", "--end-fd", "4"}, args...)...)
	s.cmd.ExtraFiles = []*os.File{readyEnd, endEnd}
	change(s.cmd)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.end.Close()
	})
	require.NoError(t, readyEnd.Close())
	require.NoError(t, endEnd.Close())
	line, err := bufio.NewReader(ready).ReadString('\n')
	require.NoError(t, err, "it says where it listens")
	require.NoError(t, ready.Close())
	s.socket = line[:len(line)-1]
	return s
}

func TestAPrivateServiceSaysWhereItListensAndLeavesNothing(t *testing.T) {
	s := startAlone(t, "--private", "--pool", "name=frames,kind=host,max=1MiB")
	c, err := bridge.Dialer{Wait: true}.Dial(t.Context(), s.socket)
	require.NoError(t, err)
	_, err = c.TryOpenPool(t.Context(), "frames")
	require.NoError(t, err)
	info, err := os.Stat(filepath.Dir(s.socket))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	require.NoError(t, s.end.Close())
	require.NoError(t, s.cmd.Wait(), "it ends with who started it")
	assert.NoDirExists(t, filepath.Dir(s.socket))
	<-c.Done()
	require.NoError(t, c.Close())
}

func TestAnUnusedServiceEndsAfterItsLastClient(t *testing.T) {
	t.Parallel()
	s := startAlone(t, "--private", "--end-unused", "5s")
	c, err := bridge.Dialer{Wait: true}.Dial(t.Context(), s.socket)
	require.NoError(t, err)
	_, err = c.Stats(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, s.cmd.Wait())
}

func TestACommandThatFollowsEndsWithAnUnusedServiceAndSaysSo(t *testing.T) {
	t.Parallel()
	s := startAlone(t, "--private", "--end-unused", "5s")
	c, err := bridge.Dialer{Wait: true}.Dial(t.Context(), s.socket)
	require.NoError(t, err)
	follow := exec.Command(rig.Poolsvc(t), "events", "--follow", "--socket", s.socket)
	var said bytes.Buffer
	follow.Stderr = &said
	require.NoError(t, follow.Start())
	for sessions := 0; sessions < 2; { // if it never connects, the test hangs
		stats, err := c.Stats(t.Context())
		require.NoError(t, err)
		sessions = stats.Sessions
	}
	require.NoError(t, c.Close())
	require.NoError(t, s.cmd.Wait())
	require.Error(t, follow.Wait())
	assert.Equal(t, "poolsvc: disconnected from the service: the service is shutting down\n", said.String())
}

func TestAServiceThatNobodyUsesAtAllEnds(t *testing.T) {
	require.NoError(t, startAlone(t, "--private", "--end-unused", "1ms").cmd.Wait())
}

func TestAServiceThatCannotListenSaysByItsExitStatusWhy(t *testing.T) {
	socket := rig.Serve(t).Socket
	folder := t.TempDir()
	require.NoError(t, os.Chmod(folder, 0o777))
	for _, c := range []struct {
		socket string
		status int
	}{
		{socket, 3}, // another service listens on this socket
		{filepath.Join(folder, "s"), 4},
		{"/dev/null/s", 4},
	} {
		for _, guard := range []string{"--guard=false", "--guard"} {
			cmd := exec.Command(rig.Poolsvc(t), "serve", "--socket", c.socket, guard)
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			assert.Equal(t, c.status, cmd.ProcessState.ExitCode(), "%s", out)
		}
	}
}

func TestADescriptorThatIsNotOpenIsAMistake(t *testing.T) {
	for _, flag := range []string{"--ready-fd", "--end-fd"} {
		cmd := exec.Command(rig.Poolsvc(t), "serve", "--private", flag, "17")
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		assert.Equal(t, 2, cmd.ProcessState.ExitCode())
		assert.Contains(t, string(out), flag+" 17 is no open descriptor")
	}
}
