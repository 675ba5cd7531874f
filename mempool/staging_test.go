package mempool

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// planned sets another plan for deviceStreams until the test ends.
func planned(t testing.TB, p stagingPlan) {
	t.Helper()
	before := plan
	plan = p
	t.Cleanup(func() { plan = before })
}

// smallPlan has so few pieces that all pieces are soon in use. Several goroutines fill a piece.
var smallPlan = stagingPlan{
	piece: 1 << 20, pieces: 3,
	copying: copying{stripe: 64 << 10, together: 4, vigil: time.Microsecond},
}

func TestWhatIsCopiedAheadOfTheGPUMayBeOverwritten(t *testing.T) {
	planned(t, smallPlan)
	a := gpuBacking(t)
	const frames, size = 7, 1<<20 - 5
	memory := make([]*deviceAllocation, frames)
	for i := range memory {
		memory[i] = take(t, a, size)
	}
	clock, stuck := unreached(t)
	large := &memory[0].deviceStream.staging.large
	blocked(t, memory[0], clock, stuck)

	src := make([]byte, size)
	fill := func(i int) error {
		copy(src, random(size, uint64(i)))
		err := memory[i].CopyFrom(0, src)
		clear(src)
		return err
	}
	for i := range smallPlan.pieces {
		require.NoError(t, fill(i), "the GPU has not begun, and there is a piece")
	}
	filled := make(chan error, 1)
	go func() {
		for i := smallPlan.pieces; i < frames; i++ {
			if err := fill(i); err != nil {
				filled <- err
				return
			}
		}
		filled <- nil
	}()
	require.NoError(t, clock.Reach(stuck))
	require.NoError(t, <-filled)
	dst := make([]byte, size)
	for i, m := range memory {
		require.NoError(t, m.CopyTo(dst, 0))
		assert.True(t, bytes.Equal(random(size, uint64(i)), dst), "frame %d", i)
	}
	assert.Equal(t, smallPlan.pieces, large.made, "page-locked memory has its limit")
}

func TestCopiesIntoTheSameMemoryFollowEachOther(t *testing.T) {
	planned(t, smallPlan)
	const size = 5<<20 + 3 // more than all pieces hold
	m := take(t, gpuBacking(t), size)
	src, dst := make([]byte, size), make([]byte, size)
	for round := range 8 {
		copy(src, random(size, uint64(round)))
		require.NoError(t, m.CopyFrom(0, src))
		clear(src)
		require.NoError(t, m.CopyFrom(uint64(round), []byte("the last word")))
	}
	require.NoError(t, m.CopyTo(dst, 0))
	want := random(size, 7)
	copy(want[7:], "the last word")
	assert.True(t, bytes.Equal(want, dst))
}
