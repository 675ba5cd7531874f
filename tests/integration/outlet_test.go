package integration

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// fullPipe returns a pipe that takes no byte more. Nobody reads it.
func fullPipe(t *testing.T) (reader, writer *os.File) {
	t.Helper()
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = reader.Close(), writer.Close() })
	fd := int(writer.Fd())
	require.NoError(t, unix.SetNonblock(fd, true))
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 4096))
	}
	require.ErrorIs(t, err, unix.EAGAIN)
	require.NoError(t, unix.SetNonblock(fd, false)) // a service blocks on it, as on a terminal after Ctrl-S
	return reader, writer
}

// fullNotifySocket returns the path of a socket for NOTIFY_SOCKET whose queue is full.
func fullNotifySocket(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	for err == nil {
		err = unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrUnix{Name: path})
	}
	require.ErrorIs(t, err, unix.EAGAIN)
	return path
}

// complain makes the service log a warning, again and again: each client asks for more than the pool has.
func complain(t *testing.T, socket string) {
	t.Helper()
	for range 20 {
		c, err := bridge.Dialer{Wait: true}.Dial(t.Context(), socket)
		require.NoError(t, err)
		pool, err := c.TryOpenPool(t.Context(), "p")
		require.NoError(t, err)
		_, err = pool.TryAllocate(t.Context(), bridge.Tensor{DType: bridge.Uint8, Shape: []uint64{1 << 30}})
		require.Error(t, err)
		_, err = c.Stats(t.Context())
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
}

// impaired returns the texts of the events of kind service-impaired. It waits for the first.
func impaired(t *testing.T, socket string) (texts []string) {
	t.Helper()
	c, err := bridge.Dialer{Wait: true}.Dial(t.Context(), socket)
	require.NoError(t, err)
	defer c.Close()
	for after := uint64(0); len(texts) == 0; {
		page, err := c.Events(t.Context(), after)
		require.NoError(t, err)
		for _, e := range page.Events {
			if e.Kind == mempool.ServiceImpaired {
				texts = append(texts, e.Text)
			}
		}
		after = page.Next
	}
	return texts
}

// ends makes the service end, and checks that it ends by itself.
func ends(t *testing.T, s *started) {
	t.Helper()
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, s.cmd.Wait())
}

const onePool = "name=p,kind=host,max=1MiB"

func TestABlockedLogHoldsUpNobody(t *testing.T) {
	_, log := fullPipe(t)
	s := startAloneWith(t, func(c *exec.Cmd) { c.Stderr = log }, "--private", "--verbose", "--pool", onePool)
	complain(t, s.socket)
	ends(t, s)
}

func TestAServiceOutlivesTheReaderOfItsLogAndSaysSoInItsHistory(t *testing.T) {
	reader, log, err := os.Pipe()
	require.NoError(t, err)
	s := startAloneWith(t, func(c *exec.Cmd) { c.Stderr = log }, "--private", "--verbose", "--pool", onePool)
	require.NoError(t, log.Close())
	require.NoError(t, reader.Close())
	complain(t, s.socket)
	said := impaired(t, s.socket)
	require.Len(t, said, 1)
	assert.Contains(t, said[0], "the log cannot be written: write /dev/stderr: broken pipe")
	ends(t, s)
}

func TestAFullDiskUnderTheLogIsSaidInTheHistory(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	s := startAloneWith(t, func(c *exec.Cmd) { c.Stderr = full }, "--private", "--verbose", "--pool", onePool)
	complain(t, s.socket)
	assert.Contains(t, impaired(t, s.socket)[0], "no space left on device")
	ends(t, s)
}

func TestASystemdThatDoesNotReadHoldsUpNobody(t *testing.T) {
	s := startAloneWith(t, func(c *exec.Cmd) {
		c.Env = append(os.Environ(), "NOTIFY_SOCKET="+fullNotifySocket(t), "WATCHDOG_USEC=30000")
	}, "--private", "--pool", onePool)
	complain(t, s.socket)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGHUP))
	complain(t, s.socket)
	ends(t, s)
}

func TestAVisitorThatDoesNotReadHoldsUpNobody(t *testing.T) {
	web := filepath.Join(t.TempDir(), "http")
	s := startAlone(t, "--private", "--pool", onePool, "--http", "unix:"+web)
	conn, err := net.Dial("unix", web)
	require.NoError(t, err)
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	require.NoError(t, err)
	request := []byte("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
	stuck := false
	require.NoError(t, raw.Write(func(fd uintptr) bool { // until the service reads no request more, since it cannot send its answers
		var err error
		for err == nil {
			_, err = unix.Write(int(fd), request)
		}
		stuck = errors.Is(err, unix.EAGAIN)
		return true
	}))
	require.True(t, stuck)
	complain(t, s.socket)
	ends(t, s)
}

func TestAHangupWithoutAConfigurationFileEndsNothing(t *testing.T) {
	reader, log, err := os.Pipe()
	require.NoError(t, err)
	defer reader.Close()
	s := startAloneWith(t, func(c *exec.Cmd) { c.Stderr = log }, "--private", "--pool", onePool)
	require.NoError(t, log.Close())
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGHUP))
	lines := bufio.NewScanner(reader)
	for lines.Scan() && !strings.Contains(lines.Text(), "SIGHUP changes nothing") { //revive:disable-line:empty-block
	}
	require.NoError(t, lines.Err())
	require.Contains(t, lines.Text(), "without a configuration file")
	complain(t, s.socket)
	go func() { _, _ = io.Copy(io.Discard, reader) }()
	ends(t, s)
}

func TestAServiceWhoseSocketOfHTTPIsCleanedAwayMakesItAgainAndSaysSo(t *testing.T) {
	web := filepath.Join(t.TempDir(), "http")
	s := startAlone(t, "--private", "--pool", onePool, "--http", "unix:"+web)
	complain(t, s.socket) // the service listens
	require.NoError(t, os.Remove(web))
	assert.Contains(t, impaired(t, s.socket)[0], "somebody removed "+web+": the service has made the socket again")
	conn, err := net.Dial("unix", web)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	ends(t, s)
	assert.NoFileExists(t, web)
}

func TestAServiceWhoseSocketIsCleanedAwayMakesItAgainAndSaysSo(t *testing.T) {
	s := startAlone(t, "--socket", filepath.Join(t.TempDir(), "run", "s"), "--pool", onePool)
	c, err := bridge.Dialer{Wait: true}.Dial(t.Context(), s.socket)
	require.NoError(t, err)
	defer c.Close()
	folder := filepath.Dir(s.socket)
	require.NoError(t, os.Rename(folder, folder+".gone")) // at once: RemoveAll alone races with the service, which makes it again
	require.NoError(t, os.RemoveAll(folder+".gone"))
	for after := uint64(0); ; {
		page, err := c.Events(t.Context(), after)
		require.NoError(t, err)
		if i := slices.IndexFunc(page.Events, func(e mempool.HistoryEvent) bool { return e.Kind == mempool.ServiceImpaired }); i >= 0 {
			assert.Contains(t, page.Events[i].Text, "somebody removed "+s.socket+": the service has made the socket again")
			break
		}
		after = page.Next
	}
	complain(t, s.socket)
	ends(t, s)
	assert.NoFileExists(t, s.socket)
}
