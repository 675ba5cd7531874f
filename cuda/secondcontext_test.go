package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

func TestASecondContextLivesBesideThePrimaryOne(t *testing.T) {
	primary := context(t)
	second, err := primary.Device().NewContext()
	require.NoError(t, err)
	assert.True(t, primary.Primary())
	assert.False(t, second.Primary())
	assert.Equal(t, primary.Device(), second.Device())

	ptr, err := second.Malloc(4096)
	require.NoError(t, err)
	s, err := second.NewStream()
	require.NoError(t, err)
	require.NoError(t, s.Memset8(ptr, 7, 4096))
	require.NoError(t, s.Synchronize())
	got := make([]byte, 1)
	require.NoError(t, second.CopyDtoH(got, ptr))
	assert.Equal(t, byte(7), got[0])
	require.NoError(t, s.Close())
	require.NoError(t, second.MFree(ptr))
	require.NoError(t, second.Close())

	_, err = second.Malloc(1)
	assert.ErrorIs(t, err, cuda.ErrClosed)
	here, err := primary.Malloc(4096)
	require.NoError(t, err, "the primary one goes on")
	require.NoError(t, primary.MFree(here))
}
