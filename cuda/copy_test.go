package cuda_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

// pattern returns n bytes whose period is not a power of two.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i % 251)
	}
	return b
}

func TestCopiesGoAllTheWayRound(t *testing.T) {
	c := context(t)
	s := stream(t, c)
	const n = 3*mib + 17
	a, err := c.Malloc(n)
	require.NoError(t, err)
	b, err := c.Malloc(n)
	require.NoError(t, err)
	defer func() {
		require.NoError(t, c.MFree(a))
		require.NoError(t, c.MFree(b))
	}()
	want, got := pattern(n), make([]byte, n)
	require.NoError(t, c.CopyHtoD(a, want))
	require.NoError(t, c.CopyDtoD(b, a, n))
	require.NoError(t, c.CopyDtoH(got, b))
	assert.True(t, bytes.Equal(want, got))

	require.NoError(t, s.Memset8(a, 0, n))
	require.NoError(t, s.CopyDtoDAsync(a+17, b+17, n-17))
	require.NoError(t, s.Synchronize())
	require.NoError(t, c.CopyDtoH(got, a))
	assert.True(t, bytes.Equal(want[17:], got[17:]))
	assert.Equal(t, make([]byte, 17), got[:17])
}

func TestAsyncCopiesGoThroughPinnedMemory(t *testing.T) {
	c := context(t)
	s := stream(t, c)
	const n = mib
	in, err := c.NewPinned(n)
	require.NoError(t, err)
	defer in.Close()
	out, err := c.NewPinned(n)
	require.NoError(t, err)
	defer out.Close()
	ptr, err := c.Malloc(n)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.MFree(ptr)) }()

	copy(in.Bytes(), pattern(n))
	require.NoError(t, s.CopyHtoDAsync(ptr, in, 0, n))
	require.NoError(t, s.CopyDtoHAsync(out, 100, ptr+100, n-100))
	require.NoError(t, s.Synchronize())
	assert.True(t, bytes.Equal(pattern(n)[100:], out.Bytes()[100:]))

	require.ErrorIs(t, s.CopyHtoDAsync(ptr, in, 1, n), cuda.ErrInvalidValue)
	require.ErrorIs(t, s.CopyDtoHAsync(out, ^uint64(0), ptr, 2), cuda.ErrInvalidValue)
	require.NoError(t, in.Close())
	require.ErrorIs(t, s.CopyHtoDAsync(ptr, in, 0, n), cuda.ErrClosed)
}

func TestPinnedMemoryHasAnAddressOnTheDevice(t *testing.T) {
	c := context(t)
	s := stream(t, c)
	p, err := c.NewPinned(4096)
	require.NoError(t, err)
	defer p.Close()
	assert.EqualValues(t, 4096, p.Size())
	require.NoError(t, s.Memset32(p.DevicePtr(), 0x01020304, 1024))
	require.NoError(t, s.Synchronize())
	assert.Equal(t, []byte{4, 3, 2, 1}, p.Bytes()[4092:])
	_, err = c.NewPinned(0)
	require.ErrorIs(t, err, cuda.ErrInvalidValue)
}

func TestFillsStayWithinTheirBytes(t *testing.T) {
	c := context(t)
	s := stream(t, c)
	ptr, err := c.Malloc(4096)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.MFree(ptr)) }()
	require.NoError(t, s.Memset8(ptr, 0xaa, 4096))
	require.NoError(t, s.Memset8(ptr+1, 0xbb, 3))
	require.NoError(t, s.Memset32(ptr+8, 0xcccccccc, 1))
	require.NoError(t, s.Synchronize())
	got := make([]byte, 16)
	require.NoError(t, c.CopyDtoH(got, ptr))
	assert.Equal(t, []byte{0xaa, 0xbb, 0xbb, 0xbb, 0xaa, 0xaa, 0xaa, 0xaa, 0xcc, 0xcc, 0xcc, 0xcc, 0xaa, 0xaa, 0xaa, 0xaa}, got)
}

func TestACopyBeyondTheAllocationIsRefused(t *testing.T) {
	c := context(t)
	require.ErrorIs(t, c.CopyHtoD(0, make([]byte, 16)), cuda.ErrInvalidValue)
}
