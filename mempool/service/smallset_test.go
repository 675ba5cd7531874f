package service

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestFewIsASet(t *testing.T) {
	var f smallSet[int]
	f.remove(1)
	assert.Zero(t, f.len())
	for range 2 {
		for v := 1; v <= 3; v++ {
			f.add(v)
		}
		assert.Equal(t, 3, f.len(), "an element counts once")
	}
	f.remove(1)
	assert.Equal(t, []int{2, 3}, slices.Sorted(f.all()))
	f.add(3)
	assert.Equal(t, 2, f.len(), "also one that is not the first")
	f.remove(3)
	f.remove(2)
	assert.Zero(t, f.len())
	assert.Nil(t, f.more)
}
