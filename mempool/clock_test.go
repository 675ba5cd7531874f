package mempool

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
)

// newClock makes a clock. The clock's page is closed when the test ends.
func newClock(t testing.TB) *Clock {
	t.Helper()
	file, err := shmchannel.NewFile(PageName)
	require.NoError(t, err)
	page, err := NewPage(file)
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

func TestAWordThatFailsAgainStaysFailedForACallerWhoAskedAboutItsFirstFailure(t *testing.T) {
	clock := newClock(t)
	failed := func(reason string, gone func(context.Context) (bool, error)) Fence {
		word, err := clock.Word(t.Context())
		require.NoError(t, err)
		at := clock.Next(word)
		clock.Published(at, gone)
		require.NoError(t, clock.Fail(at, reason))
		require.NoError(t, clock.Free(word))
		return at
	}
	for range TimelineWords - 1 {
		_, err := clock.Word(t.Context())
		require.NoError(t, err)
	}
	var second Fence
	asked := 0
	first := failed("first", func(context.Context) (bool, error) {
		if asked++; asked == 1 { // before the answer, another caller gets the word, and its content fails too
			second = failed("second", func(context.Context) (bool, error) { return false, nil })
		}
		return true, nil
	})
	_, err := clock.Word(t.Context())
	require.ErrorIs(t, err, ErrLimit)
	assert.Equal(t, first.Word, second.Word)
	assert.Equal(t, "second", clock.page.Reason(second.Word))
	assert.True(t, clock.page.Failed(second.Word, second.Value))
}
