package mempool

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// planned opens lanes by another plan until the test is over.
func planned(t testing.TB, p stagingPlan) {
	t.Helper()
	before := plan
	plan = p
	t.Cleanup(func() { plan = before })
}

// smallPlan has pieces that several goroutines fill, and that are soon all in use.
var smallPlan = stagingPlan{
	piece: 1 << 20, pieces: 3,
	copying: copying{stripe: 64 << 10, together: 4, vigil: time.Microsecond},
}

func TestWhatIsCopiedAheadOfTheGPUMayBeOverwritten(t *testing.T) {
	planned(t, smallPlan)
	svc := newService(t)
	s := open(t, svc)
	p := gpuPool(t, s)
	clock, stuck := unreached(t, s)
	const frames, size = 7, 1<<20 - 5
	leases := make([]*Lease, frames)
	for i := range leases {
		leases[i] = allocate(t, s, p, size)
	}
	m, err := leases[0].Memory()
	require.NoError(t, err)
	large := &m.(*deviceAllocation).lane.staging.large
	blocked(t, leases[0], clock, stuck)

	src := make([]byte, size)
	fill := func(i int) error {
		copy(src, random(size, uint64(i)))
		err := leases[i].CopyFrom(0, src)
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
	for i, l := range leases {
		require.NoError(t, l.CopyTo(dst, 0))
		assert.True(t, bytes.Equal(random(size, uint64(i)), dst), "frame %d", i)
		release(t, l)
	}
	assert.Equal(t, smallPlan.pieces, large.made, "page-locked memory has its limit")
}

func TestCopiesIntoTheSameMemoryFollowEachOther(t *testing.T) {
	planned(t, smallPlan)
	svc := newService(t)
	s := open(t, svc)
	p := gpuPool(t, s)
	const size = 5<<20 + 3 // more pieces than there are
	l := allocate(t, s, p, size)
	src, dst := make([]byte, size), make([]byte, size)
	for round := range 8 {
		copy(src, random(size, uint64(round)))
		require.NoError(t, l.CopyFrom(0, src))
		clear(src)
		require.NoError(t, l.CopyFrom(uint64(round), []byte("the last word")))
	}
	require.NoError(t, l.CopyTo(dst, 0))
	want := random(size, 7)
	copy(want[7:], "the last word")
	assert.True(t, bytes.Equal(want, dst))
	release(t, l)
}
