package bridge

import (
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// acceptFDs makes the server's end take descriptors, as it does where the kernel cannot refuse them.
func acceptFDs(t *testing.T, c *serverConn) {
	t.Helper()
	raw, err := c.conn.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 1) // older kernels have no such option
	}))
}

func TestDescriptorsThatNobodyAskedForAreClosed(t *testing.T) {
	for _, n := range []int{1, seqpacket.MaxFDs} {
		r := start(t, ServerConfig{}, unhurried)
		c := greeted(t, r.path)
		acceptFDs(t, r.only(t))
		reader, writer, err := os.Pipe()
		require.NoError(t, err)
		defer reader.Close()
		packet, err := wire.AppendRequest(nil, 2, &wire.StatsRequest{})
		require.NoError(t, err)
		fds := make([]int, n)
		for i := range fds {
			fds[i] = int(writer.Fd())
		}
		require.NoError(t, c.conn.Send(packet, fds))
		require.NoError(t, writer.Close())
		err = c.last()
		assert.ErrorIs(t, err, wire.CodeProtocol)
		assert.ErrorContains(t, err, "only the service sends any")
		_, err = reader.Read(make([]byte, 1))
		assert.Equal(t, io.EOF, err, "the pipe has no writer left")
	}
}

func TestSessionsLeaveNoDescriptorBehind(t *testing.T) {
	r := start(t, ServerConfig{}, unhurried)
	c := dial(t, r.path)
	p := createPool(t, c, hostPool("p", 1<<16))
	publish(t, allocate(t, p, 10), "x")
	before := -1
	for i := range 20 {
		other := dial(t, r.path)
		l, err := other.Get(t.Context(), "x", LeaseOptions{})
		require.NoError(t, err)
		require.NoError(t, l.Release(false))
		require.NoError(t, other.Close())
		vanishing := greeted(t, r.path)
		vanishing.ask(2, &wire.Open{Name: "p"}, &wire.PoolReply{})
		require.NoError(t, vanishing.conn.Close())
		for r.sessions() != 1 {
			_, err := c.Stats(t.Context())
			require.NoError(t, err)
		}
		if i == 0 {
			before = openFDs(t)
		}
	}
	eventually(t, func() bool { return openFDs(t) <= before }) // the end of a session may be under way
}

// sessions is how many connections the server has.
func (r *rig) sessions() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns)
}

func openFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func TestAFullTableOfDescriptorsMakesClientsWait(t *testing.T) {
	path := openDir(t) + "/run/s"
	server := spawn(t, "server", path, nil)
	for server.says() != "full" { // accepting fails with a full table, whether somebody is there or not
	}
	connected := make(chan *Client)
	go func() {
		c, err := Dial(t.Context(), path)
		assert.NoError(t, err)
		connected <- c
	}()
	assert.Contains(t, server.says(), "connections have to wait")
	server.tell("make room")
	c := <-connected
	require.NotNil(t, c)
	createPool(t, c, hostPool("p", 4096))
	require.NoError(t, c.Close())
	server.tell("quit")
}

func TestAServiceWithoutDescriptorsSaysWhatToRaise(t *testing.T) {
	path := openDir(t) + "/run/s"
	server := spawn(t, "server", path, nil)
	for server.says() != "full" {
	}
	server.tell("one") // for the connection, and none for the process behind it
	_, err := Dial(t.Context(), path)
	require.ErrorIs(t, err, ErrLimit)
	assert.ErrorContains(t, err, "LimitNOFILE")
	server.tell("many")
	for server.says() != "has made room" { // it logs, too, and has said so of the first descriptor
	}
	for server.says() != "has made room" {
	}
	require.NoError(t, dial(t, path).Close())
	server.tell("quit")
}

func TestAPoolsFileIsNotSentOnceItIsClosed(t *testing.T) {
	a, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer a.Close()
	b, err := os.Open("/proc/self/status")
	require.NoError(t, err)
	require.NoError(t, withFDs([]*os.File{a, b}, nil, func(fds []int) error {
		require.Len(t, fds, 2)
		require.NoError(t, b.Close())
		_, err := unix.FcntlInt(uintptr(fds[1]), unix.F_GETFD, 0)
		assert.NoError(t, err, "it stays open while it is sent")
		return nil
	}))
	err = withFDs([]*os.File{a, b}, nil, func([]int) error {
		t.Error("a closed file was sent")
		return nil
	})
	assert.ErrorIs(t, err, os.ErrClosed)

	r := start(t, ServerConfig{}, unhurried)
	c := greeted(t, r.path)
	gone := r.only(t)
	files := []*os.File{b}
	gone.reply(8, &wire.PoolReply{Pool: wire.Pool{ID: 1, Name: "p", Kind: string(mempool.Host), MaxBytes: 1, Export: &wire.Export{FDs: 1}}}, files)
	assert.ErrorIs(t, c.reply(8, &wire.PoolReply{}), wire.CodeClosed)
}
