package mempool

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newClock makes a clock. The clock's page is closed when the test ends.
func newClock(t testing.TB) *Clock {
	t.Helper()
	page, file, err := NewPage()
	require.NoError(t, err)
	require.NoError(t, file.Close())
	t.Cleanup(func() { assert.NoError(t, page.Close()) })
	return NewClock(1, page)
}

func TestAClockHasSoManyWords(t *testing.T) {
	clock := newClock(t)
	seen := make(map[uint64]bool)
	for range TimelineWords {
		word, err := clock.Word()
		require.NoError(t, err)
		assert.False(t, seen[word])
		seen[word] = true
	}
	_, err := clock.Word()
	assert.ErrorIs(t, err, ErrLimit)
}
