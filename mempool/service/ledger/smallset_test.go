package ledger

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestFewIsASet(t *testing.T) {
	var f SmallSet[int]
	f.Remove(1)
	assert.Zero(t, f.Len())
	for range 2 {
		for v := 1; v <= 3; v++ {
			f.Add(v)
		}
		assert.Equal(t, 3, f.Len(), "an element counts once")
	}
	f.Remove(1)
	assert.Equal(t, []int{2, 3}, slices.Sorted(f.All()))
	f.Add(3)
	assert.Equal(t, 2, f.Len(), "also one that is not the first")
	f.Remove(3)
	f.Remove(2)
	assert.Zero(t, f.Len())
	assert.Nil(t, f.more)
}
