package wakeful

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWhoLooksInVainLooksLessAndLessOften(t *testing.T) {
	var e Eagerness
	for _, sleeps := range []int{1, 3, 7, 15, 31, 63, 63} {
		assert.True(t, e.Willing())
		e.Learn(false)
		for range sleeps {
			assert.False(t, e.Willing(), "after looking in vain it sleeps %d times", sleeps)
		}
	}
	assert.True(t, e.Willing())
	e.Learn(true)
	assert.True(t, e.Willing(), "and at once again when it was worth it")
	e.Learn(false)
	assert.False(t, e.Willing())
	assert.True(t, e.Willing())
}

func TestOnlySoManyLookAtATime(t *testing.T) {
	defer func(n int64) { spare = n }(spare)
	spare = 2
	assert.True(t, Spare())
	assert.True(t, Stay(0))
	assert.True(t, Stay(1))
	assert.False(t, Stay(0))
	assert.True(t, Stay(3))
	Leave()
	Leave()
	assert.True(t, Stay(0))
	Leave()
	Leave()

	spare = 0
	assert.False(t, Spare())
	assert.False(t, Stay(0))
	assert.True(t, Stay(1), "one may in any case")
	assert.False(t, Stay(1))
	Leave()
	assert.Zero(t, awake.Load())
}
