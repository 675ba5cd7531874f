package seqpacket

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestAFileIsNotSentOnceItIsClosed(t *testing.T) {
	a, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer a.Close()
	b, err := os.Open("/proc/self/status")
	require.NoError(t, err)
	require.NoError(t, WithFiles([]*os.File{a, b}, func(fds []int) error {
		require.Len(t, fds, 2)
		require.NoError(t, b.Close())
		_, err := unix.FcntlInt(uintptr(fds[1]), unix.F_GETFD, 0)
		assert.NoError(t, err, "it stays open while it is sent")
		return nil
	}))
	err = WithFiles([]*os.File{a, b}, func([]int) error {
		t.Error("a closed file was sent")
		return nil
	})
	assert.ErrorIs(t, err, os.ErrClosed)
}
