package server

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

// acceptFDs makes the server's socket accept descriptors, as on a kernel that cannot refuse descriptors.
func acceptFDs(t *testing.T, c *connection) {
	t.Helper()
	raw, err := c.conn.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 1) // older kernels have no such option
	}))
}

func TestDescriptorsThatNobodyAskedForAreClosed(t *testing.T) {
	for _, n := range []int{1, seqpacket.MaxFDs} {
		r := start(t, Config{}, unhurried)
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
		require.NoError(t, c.Conn.Send(packet, fds))
		require.NoError(t, writer.Close())
		err = c.Last()
		assert.ErrorIs(t, err, wire.CodeProtocol)
		assert.ErrorContains(t, err, "only the service sends any")
		_, err = reader.Read(make([]byte, 1))
		assert.Equal(t, io.EOF, err, "the pipe has no writer left")
	}
}

func TestAPoolsFileIsNotSentOnceItIsClosed(t *testing.T) {
	b, err := os.Open("/proc/self/status")
	require.NoError(t, err)
	require.NoError(t, b.Close())
	r := start(t, Config{}, unhurried)
	c := greeted(t, r.path)
	gone := r.only(t)
	files := []*os.File{b}
	gone.answer(8, &wire.PoolReply{Pool: wire.PoolInfo{ID: 1, Name: "p", Kind: wire.Kind(mempool.Host), MaxBytes: 1, Export: &wire.Export{FDs: 1}}}, nil, files...)
	assert.ErrorIs(t, c.Reply(8, &wire.PoolReply{}), wire.CodeClosed)
}
