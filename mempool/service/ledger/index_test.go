package ledger

import (
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// check asserts that the index has the entries of the map want, in order, and that its chunks are valid.
func (x *Index[K, V]) check(t *testing.T, want map[K]V) {
	t.Helper()
	var keys []K
	var first K
	for key, value := range x.After(first) {
		require.Equal(t, want[key], value)
		keys = append(keys, key)
	}
	require.Equal(t, slices.Sorted(maps.Keys(want)), keys)
	require.Equal(t, len(want), x.Len())
	for i, chunk := range x.chunks {
		require.NotEmpty(t, chunk)
		require.LessOrEqual(t, len(chunk), indexChunk)
		if i > 0 {
			require.Greater(t, len(x.chunks[i-1])+len(chunk), indexChunk/2)
		}
	}
}

func TestAnIndexHasWhatAMapHasInOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, grow := range []int{3, 1} { // how many keys are added for each key that is removed
		var x Index[uint64, int]
		want := make(map[uint64]int)
		for range 40 {
			for n := range 200 {
				key := 1 + random.Uint64N(3000)
				if random.IntN(1+grow) > 0 {
					x.Set(key, n)
					want[key] = n
				} else {
					x.Remove(key)
					delete(want, key)
				}
				require.Equal(t, want[key], x.Get(key))
			}
			x.check(t, want)
		}
		for key := range want {
			x.Remove(key)
			delete(want, key)
		}
		x.check(t, want)
		assert.Nil(t, x.chunks)
	}
}

func TestIdsFillTheChunksOfAnIndex(t *testing.T) {
	var x Index[uint64, int]
	for id := range uint64(10 * indexChunk) {
		x.Set(id+1, 0)
	}
	assert.Len(t, x.chunks, 10)
}

func TestAWalkGoesOnWhileEntriesComeAndGo(t *testing.T) {
	var x Index[uint64, uint64]
	const n = 10 * indexChunk
	for key := uint64(2); key <= 2*n; key += 2 {
		x.Set(key, key)
	}
	var seen []uint64
	for key := range x.After(6) {
		seen = append(seen, key)
		if key%2 == 0 {
			x.Remove(key)
			x.Remove(key - 4)
			x.Set(key-1, 0)
			x.Set(key+1, 0)
		}
	}
	assert.Len(t, seen, 2*(n-3), "each that was there, and each that was added after the one before")
	assert.True(t, slices.IsSorted(seen))
	assert.Equal(t, len(seen), len(slices.Compact(slices.Clone(seen))), "none twice")
	assert.EqualValues(t, 8, seen[0])
}

func TestAnIndexKeepsNothingAliveThatWasRemoved(t *testing.T) {
	var x Index[uint64, *[64]byte]
	gone := make(map[uint64]weak.Pointer[[64]byte])
	for _, key := range rand.New(rand.NewPCG(3, 4)).Perm(20 * indexChunk) {
		value := new([64]byte)
		x.Set(uint64(key+1), value)
		if key%10 != 0 {
			gone[uint64(key+1)] = weak.Make(value)
		}
	}
	for key := range gone {
		x.Remove(key)
	}
	runtime.GC()
	for key, value := range gone {
		require.Nil(t, value.Value(), key)
	}
	runtime.KeepAlive(&x)
}
