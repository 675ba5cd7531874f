package mempool

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWordsAreComparedLikeTheGPUDoes(t *testing.T) {
	assert.True(t, passed(5, 5))
	assert.True(t, passed(letGo, MaxFenceValue))
	assert.True(t, passed(letGo+letGo-1, 1))
	assert.False(t, passed(4, 5))
	assert.True(t, kept(letGo+5, 5))
	assert.False(t, kept(letGo+4, 5))
}
