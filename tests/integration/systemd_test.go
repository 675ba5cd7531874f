package integration

import (
	"fmt"
	"net"
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
	"github.com/poolbridge/poolbridge/tests/rig"
)

// activated starts `poolsvc serve` in the way in which systemd starts the service of a socket unit.
func activated(t *testing.T, sockets []*os.File, args ...string) (*exec.Cmd, *strings.Builder) {
	t.Helper()
	script := `LISTEN_PID=$$ exec "$0" serve "$@"`
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, rig.Poolsvc(t)}, args...)...)
	cmd.Env = append(os.Environ(), "LISTEN_FDS="+[]string{"0", "1", "2"}[len(sockets)])
	cmd.ExtraFiles = sockets
	var log strings.Builder
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, &log
}

func socketUnit(t *testing.T, network string) (path string, file *os.File) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	file, err = l.File()
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return path, file
}

func TestTheSocketThatSystemdHandsOverOutlivesTheService(t *testing.T) {
	path, file := socketUnit(t, "unixpacket")
	for range 2 { // before the second round, no service runs for a short time
		dialed := make(chan error, 1)
		go func() { // this client connects before the service runs, and waits for the service
			c, err := bridge.Dialer{Wait: true}.Dial(t.Context(), path)
			if err == nil {
				_, err = c.Stats(t.Context())
			}
			if err == nil {
				err = c.Close()
			}
			dialed <- err
		}()
		cmd, log := activated(t, []*os.File{file}, "--socket", filepath.Join(t.TempDir(), "elsewhere"))
		require.NoError(t, <-dialed)
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait())
		assert.Contains(t, log.String(), "not that of the configuration")
		info, err := os.Lstat(path)
		require.NoError(t, err)
		assert.Equal(t, os.ModeSocket, info.Mode().Type())
	}
}

func TestASocketUnitThatIsWrongIsToldSo(t *testing.T) {
	_, stream := socketUnit(t, "unix")
	_, packets := socketUnit(t, "unixpacket")
	for _, c := range []struct {
		sockets []*os.File
		args    []string
		want    string
	}{
		{[]*os.File{stream}, nil, "expected a Unix socket of type SOCK_SEQPACKET that listens at a path (ListenSequentialPacket="},
		{[]*os.File{packets, stream}, nil, "passed 2 sockets: expected one"},
		{[]*os.File{packets}, []string{"--private"}, "--private makes another"},
	} {
		cmd, log := activated(t, c.sockets, c.args...)
		require.Error(t, cmd.Wait())
		assert.Equal(t, 4, cmd.ProcessState.ExitCode())
		assert.Contains(t, log.String(), c.want)
	}
}

func TestSystemdHearsWhenTheServiceIsReadyReloadsAnswersAndStops(t *testing.T) {
	heard := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: heard, Net: "unixgram"})
	require.NoError(t, err)
	defer l.Close()
	require.NoError(t, l.SetReadDeadline(time.Now().Add(time.Minute)))
	packet := make([]byte, 4096)
	next := func(want string) string {
		t.Helper()
		for { // messages of the watchdog may come between the expected messages
			n, err := l.Read(packet)
			require.NoError(t, err, "no "+want)
			if text := string(packet[:n]); text != "WATCHDOG=1" || want == text {
				return text
			}
		}
	}
	socket := filepath.Join(t.TempDir(), "s")
	cmd := exec.Command(rig.Poolsvc(t), "serve", "--socket", socket, "--config", configuration(t, ""))
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+heard, "WATCHDOG_USEC=3000000")
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()
	assert.Equal(t, "READY=1\nSTATUS=serving "+socket, next("READY=1"))
	c, err := bridge.Dialer{Wait: true}.Dial(t.Context(), socket)
	require.NoError(t, err, "clients can connect from then on")
	require.NoError(t, c.Close())
	assert.Equal(t, "WATCHDOG=1", next("WATCHDOG=1"))
	var before, after unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &before))
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	var at int64
	_, err = fmt.Sscanf(next("RELOADING=1"), "RELOADING=1\nMONOTONIC_USEC=%d", &at)
	require.NoError(t, err)
	require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &after))
	assert.GreaterOrEqual(t, at, before.Nano()/1000, "systemd (Type=notify-reload) ignores an older message")
	assert.LessOrEqual(t, at, after.Nano()/1000)
	assert.Equal(t, "READY=1", next("READY=1"))
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, "STOPPING=1", next("STOPPING=1"))
	require.NoError(t, cmd.Wait())
}
