package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/cuda"
)

// page returns a page of a memfd, mapped with this protection.
func page(t *testing.T, prot int) []byte {
	t.Helper()
	fd, err := unix.MemfdCreate("page", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, 4096))
	b, err := unix.Mmap(fd, 0, 4096, prot, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

func TestRegisteredMemoryIsWrittenByAStream(t *testing.T) {
	c := context(t)
	needs(t, c.Device().SupportsStreamMemOps)
	s := stream(t, c)
	mem := page(t, unix.PROT_READ|unix.PROT_WRITE)
	r, err := c.RegisterHost(mem, cuda.HostDeviceMap)
	require.NoError(t, err)
	require.NotZero(t, r.DevicePtr())
	require.NoError(t, s.WriteValue64(r.DevicePtr()+8, 0x42))
	require.NoError(t, s.Synchronize())
	assert.EqualValues(t, 0x42, r.Bytes()[8])

	_, err = c.RegisterHost(mem, cuda.HostDeviceMap)
	require.ErrorIs(t, err, cuda.ErrHostMemoryAlreadyRegistered)
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	r, err = c.RegisterHost(mem, cuda.HostDeviceMap|cuda.HostPortable)
	require.NoError(t, err, "after Close it can be registered again")
	require.NoError(t, r.Close())
}

func TestNothingCannotBeRegistered(t *testing.T) {
	c := context(t)
	_, err := c.RegisterHost(nil, 0)
	require.ErrorIs(t, err, cuda.ErrInvalidValue)
}
