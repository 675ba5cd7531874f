package spin

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAWaiterThatSpinsInVainSpinsLessAndLessOften(t *testing.T) {
	var a Adaptive
	for _, sleeps := range []int{1, 3, 7, 15, 31, 63, 63} {
		assert.True(t, a.Worth())
		a.Learn(false)
		for range sleeps {
			assert.False(t, a.Worth(), "after spinning in vain it sleeps %d times", sleeps)
		}
	}
	assert.True(t, a.Worth())
	a.Learn(true)
	assert.True(t, a.Worth(), "and at once again when it was worth it")
	a.Learn(false)
	assert.False(t, a.Worth())
	assert.True(t, a.Worth())
}

func TestOnlySoManyWaitersSpinAtATime(t *testing.T) {
	defer func(n int64) { most = n }(most)
	most = 2
	assert.True(t, Begin())
	assert.True(t, Begin())
	assert.False(t, Begin())
	End()
	assert.True(t, Begin())
	End()
	End()
	assert.Zero(t, spinning.Load())
}
