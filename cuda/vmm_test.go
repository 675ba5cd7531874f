package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/cuda"
)

func TestPhysicalMemoryIsMappedTwice(t *testing.T) {
	c := context(t)
	needs(t, c.Device().SupportsVMM)
	size, err := c.AllocationGranularity()
	require.NoError(t, err)
	p, err := c.NewPhysical(size)
	require.NoError(t, err)
	assert.Equal(t, size, p.Size())
	a, err := c.MapPhysical(p, cuda.AccessReadWrite)
	require.NoError(t, err)
	b, err := c.MapPhysical(p, cuda.AccessReadOnly)
	require.NoError(t, err)
	assert.NotEqual(t, a.Ptr(), b.Ptr())
	assert.Equal(t, size, a.Size())
	require.NoError(t, p.Close(), "mappings keep the memory")

	got := make([]byte, 5)
	require.NoError(t, c.CopyHtoD(a.Ptr(), []byte("hello")))
	require.NoError(t, c.CopyDtoH(got, b.Ptr()))
	assert.Equal(t, "hello", string(got))
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.NoError(t, c.CopyDtoH(got, b.Ptr()))
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.SetAccess(c.Device(), cuda.AccessReadWrite), cuda.ErrClosed)
}

func TestPhysicalMemoryComesBackThroughItsDescriptor(t *testing.T) {
	c := context(t)
	needs(t, c.Device().SupportsVMM)
	size, err := c.AllocationGranularity()
	require.NoError(t, err)
	p, err := c.NewPhysical(size)
	require.NoError(t, err)
	fd, err := p.ExportFD()
	require.NoError(t, err)
	require.NoError(t, p.Close())
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	assert.NotZero(t, flags&unix.FD_CLOEXEC)
	q, err := c.ImportPhysical(fd, size)
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
	m, err := c.MapPhysical(q, cuda.AccessReadWrite)
	require.NoError(t, err)
	require.NoError(t, q.Close())
	require.NoError(t, c.CopyHtoD(m.Ptr(), []byte{1}))
	require.NoError(t, m.Close())
}

func TestAnOddSizeIsRefused(t *testing.T) {
	c := context(t)
	needs(t, c.Device().SupportsVMM)
	_, err := c.NewPhysical(12345)
	require.ErrorIs(t, err, cuda.ErrInvalidValue)
	_, err = c.ImportPhysical(-1, 1)
	require.ErrorIs(t, err, cuda.ErrInvalidValue)
}
