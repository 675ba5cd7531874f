package cuda_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

func TestMemInfoTellsBytes(t *testing.T) {
	c := context(t)
	free, total, err := c.MemInfo()
	require.NoError(t, err)
	assert.Positive(t, free)
	assert.LessOrEqual(t, free, total)
	assert.Equal(t, device(t), c.Device())
	require.NoError(t, c.Synchronize())
}

func TestAClosedContextAnswersErrClosed(t *testing.T) {
	c, err := device(t).Retain()
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close(), "Close is idempotent")
	_, _, err = c.MemInfo()
	require.ErrorIs(t, err, cuda.ErrClosed)
	_, err = c.NewStream()
	require.ErrorIs(t, err, cuda.ErrClosed)
}

func TestAContextOutlivesWhatWasMadeFromIt(t *testing.T) {
	c, err := device(t).Retain()
	require.NoError(t, err)
	s, err := c.NewStream()
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, s.Synchronize(), "the stream goes on working")
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Synchronize(), cuda.ErrClosed)
}

func TestContextsAreUsedFromManyGoroutines(t *testing.T) {
	c := context(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				s, err := c.NewStream()
				if assert.NoError(t, err) {
					assert.NoError(t, s.Synchronize())
					assert.NoError(t, s.Close())
				}
			}
		})
	}
	wg.Wait()
}
