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
		word, err := clock.Word(t.Context())
		require.NoError(t, err)
		assert.False(t, seen[word])
		seen[word] = true
	}
	_, err := clock.Word(t.Context())
	assert.ErrorIs(t, err, ErrLimit)
}

func TestAFreedWordIsReservedAgain(t *testing.T) {
	clock := newClock(t)
	for range 3 * TimelineWords {
		word, err := clock.Word(t.Context())
		require.NoError(t, err)
		at := clock.Next(word)
		assert.False(t, clock.Past(at))
		require.NoError(t, clock.Reach(at))
		require.NoError(t, clock.Free(word))
	}
}

func TestOnlyAReservedWordWithoutAnOpenFenceIsFreed(t *testing.T) {
	clock := newClock(t)
	for _, word := range []uint64{0, TimelineWords, 1 << 40} {
		assert.ErrorIs(t, clock.Free(word), ErrInvalid)
	}
	word, err := clock.Word(t.Context())
	require.NoError(t, err)
	at := clock.Next(word)
	assert.ErrorIs(t, clock.Free(word), ErrInvalid)
	require.NoError(t, clock.Reach(at))
	require.NoError(t, clock.Free(word))
	assert.ErrorIs(t, clock.Free(word), ErrInvalid, "twice")
}
