package seqpacket

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fileOf returns a file of a listener's socket. Like a socket from systemd, the socket is in blocking mode.
func fileOf(t *testing.T, l interface{ File() (*os.File, error) }) *os.File {
	t.Helper()
	file, err := l.File()
	require.NoError(t, err)
	require.NoError(t, unix.SetNonblock(int(file.Fd()), false))
	return file
}

func TestASocketThatWasHandedOverIsServedAndStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	made, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	defer made.Close()
	l, err := ListenFile(fileOf(t, made), ListenConfig{})
	require.NoError(t, err)
	assert.Equal(t, path, l.Path())
	assert.NoFileExists(t, path+".lock", "its file is another's")
	dial(t, l)
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		accepted <- err
	}()
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-accepted, os.ErrClosed, "closing ends waiting")
	info, err := os.Lstat(path)
	require.NoError(t, err)
	assert.Equal(t, os.ModeSocket, info.Mode().Type())
}

func TestWhatIsNoListeningSocketOfPacketsIsRefused(t *testing.T) {
	dir := t.TempDir()
	stream, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "stream"), Net: "unix"})
	require.NoError(t, err)
	defer stream.Close()
	abstract, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: "@poolbridge-" + strconv.Itoa(os.Getpid()), Net: "unixpacket"})
	require.NoError(t, err)
	defer abstract.Close()
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer tcp.Close()
	deaf, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	for what, file := range map[string]*os.File{
		"another type": fileOf(t, stream), "no path": fileOf(t, abstract), "no Unix socket": fileOf(t, tcp),
		"does not listen": os.NewFile(uintptr(deaf), "deaf"), "no socket": null,
	} {
		_, err := ListenFile(file, ListenConfig{})
		require.ErrorIs(t, err, ErrNotListening)
		assert.ErrorContains(t, err, what)
		assert.ErrorContains(t, err, "ListenSequentialPacket=")
		assert.ErrorIs(t, file.Close(), os.ErrClosed)
	}
}
