package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

func TestAddressRangeFindsTheWholeAllocation(t *testing.T) {
	c := context(t)
	ptr, err := c.Malloc(4 * mib)
	require.NoError(t, err)
	base, size, err := c.AddressRange(ptr + 1000)
	require.NoError(t, err)
	assert.Equal(t, ptr, base)
	assert.EqualValues(t, 4*mib, size)
	a, err := c.PointerAttributes(ptr + 1000)
	require.NoError(t, err)
	assert.Equal(t, cuda.MemoryDevice, a.MemoryType)
	assert.Equal(t, c.Device().Ordinal(), a.Ordinal)
	assert.Equal(t, ptr, a.RangeStart)
	assert.EqualValues(t, 4*mib, a.RangeSize)
	assert.True(t, a.LegacyIPCCapable)
	assert.Zero(t, a.MemPool)
	require.NoError(t, c.MFree(ptr))
	_, _, err = c.AddressRange(ptr)
	require.Error(t, err)
}

func TestPointerAttributesTellThePool(t *testing.T) {
	c := context(t)
	s := stream(t, c)
	p := memPool(t, c, cuda.MemPoolSpec{})
	ptr, err := p.Alloc(mib, s)
	require.NoError(t, err)
	a, err := c.PointerAttributes(ptr)
	require.NoError(t, err)
	assert.Equal(t, p.Handle(), a.MemPool)
	assert.False(t, a.LegacyIPCCapable)
	assert.Equal(t, cuda.AccessReadWrite, a.Access)
	require.NoError(t, p.Free(ptr, s))
	require.NoError(t, s.Synchronize())
}

func TestAnUnknownPointerIsNoError(t *testing.T) {
	c := context(t)
	a, err := c.PointerAttributes(8)
	require.NoError(t, err)
	assert.Zero(t, a.MemoryType)
}

func TestMoreThanTheDeviceHasIsErrOutOfMemory(t *testing.T) {
	c := context(t)
	_, total, err := c.MemInfo()
	require.NoError(t, err)
	_, err = c.Malloc(2 * total)
	require.ErrorIs(t, err, cuda.ErrOutOfMemory)
}

func TestAHandleOfNothingIsRefused(t *testing.T) {
	c := context(t)
	_, err := c.OpenIPCMem(cuda.IPCMemHandle{})
	require.Error(t, err)
	_, err = c.OpenEvent(cuda.IPCEventHandle{})
	require.Error(t, err)
}
