package verify

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestFramesThatAreMissingDoubledOrOutOfOrderAreNotTheExpectedOnes(t *testing.T) {
	assert.NoError(t, consecutive([]uint64{3, 4, 5}, 3, 5))
	assert.NoError(t, eachOnce([]uint64{5, 3, 4}, 3, 5))
	for name, got := range map[string][]uint64{
		"missing at the end":    {3, 4},
		"missing in the middle": {3, 5},
		"doubled":               {3, 4, 4, 5},
		"one too many":          {3, 4, 5, 6},
		"none":                  nil,
	} {
		assert.Error(t, consecutive(got, 3, 5), name)
		assert.Error(t, eachOnce(got, 3, 5), name)
	}
	assert.Error(t, consecutive([]uint64{4, 3, 5}, 3, 5), "out of order")
}

func TestStreamsAreCheckedWithGoAndTheLibrariesThatPeopleStreamWith(t *testing.T) {
	for want, have := range map[string][]string{
		"go numpy cupy torch": {"go", "numpy", "cupy", "torch", "cuda.core", "jax", "numba"},
		"go cuda.core":        {"go", "cuda.core", "jax"},
		"go":                  {"go"},
	} {
		assert.Equal(t, want, strings.Join(streamers(have), " "))
	}
}
