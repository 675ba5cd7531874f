package mempool

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAnUploadFillsMemoryFromSeveralGoroutinesAndItsCopiesWaitForNoOtherStream(t *testing.T) {
	const chunk, chunks = 100_000, 50
	m := take(t, gpuBacking(t), chunk*chunks)
	clock, stuck := unreached(t)
	blocked(t, m, clock, stuck)
	want, arrived := random(chunk*chunks, 1), make(chan struct{}, chunks)
	u, err := NewUpload(PartOf(m, 0, chunk*chunks), chunk*chunks, chunk, 3)
	require.NoError(t, err)
	var all sync.WaitGroup
	for i := range uint64(chunks) {
		all.Go(func() {
			fill := func(to []byte) error {
				copy(to, want[i*chunk:])
				return nil
			}
			assert.NoError(t, u.Copy(t.Context(), i*chunk, chunk, fill, func() { arrived <- struct{}{} }))
		})
	}
	all.Wait()
	for range chunks {
		<-arrived
	}
	require.NoError(t, clock.Reach(stuck))
	require.NoError(t, u.Close())
	seen := make([]byte, len(want))
	require.NoError(t, m.CopyTo(seen, 0))
	assert.Equal(t, want, seen)
}

func TestACallThatWaitsForAPieceOfAnUploadEndsWithItsContext(t *testing.T) {
	m := take(t, gpuBacking(t), 1000)
	u, err := NewUpload(m, 1000, 100, 1)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	failed := errors.New("the file is gone")
	none := func() { assert.Fail(t, "nothing arrives") }
	require.ErrorIs(t, u.Copy(t.Context(), 0, 100, func([]byte) error {
		cancel()
		assert.ErrorIs(t, u.Copy(ctx, 0, 100, nil, none), context.Canceled, "the only piece is in use")
		return failed
	}, none), failed)
	var seen int
	require.NoError(t, u.Copy(t.Context(), 900, 100, func(to []byte) error { seen = len(to); return nil }, func() {}), "it is free again")
	assert.Equal(t, 100, seen)
	require.NoError(t, u.Close())
}

func TestAnUploadWritesOnlyItsMemory(t *testing.T) {
	m := take(t, gpuBacking(t), 1000)
	u, err := NewUpload(m, 1000, 2000, 1)
	require.NoError(t, err)
	for _, wrong := range [][2]uint64{{0, 1001}, {1, 1000}, {1001, 0}, {^uint64(0), 2}, {0, 2001}} {
		require.ErrorIs(t, u.Copy(t.Context(), wrong[0], wrong[1], nil, nil), ErrInvalid)
	}
	require.NoError(t, u.Close())
	for _, wrong := range []func() (*Upload, error){
		func() (*Upload, error) { return NewUpload(m, 1000, 0, 1) },
		func() (*Upload, error) { return NewUpload(m, 1000, 100, 0) },
		func() (*Upload, error) { return NewUpload(hostMemory{make([]byte, 10)}, 10, 10, 1) },
	} {
		_, err := wrong()
		require.ErrorIs(t, err, ErrInvalid)
	}
}
