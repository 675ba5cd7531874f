package ration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAKeyHasABurstAndThenOneInEachPause(t *testing.T) {
	var r Ration[string]
	now := time.Now()
	for range Burst {
		assert.True(t, r.Take("a", now))
	}
	assert.False(t, r.Take("a", now))
	assert.True(t, r.Take("b", now), "each key has its own")
	assert.False(t, r.Take("a", now.Add(Pause-1)))
	assert.True(t, r.Take("a", now.Add(Pause)))
	assert.False(t, r.Take("a", now.Add(2*Pause-1)))
	later := now.Add(1000 * Burst * Pause)
	for range Burst {
		assert.True(t, r.Take("a", later))
	}
	assert.False(t, r.Take("a", later), "no more than a burst is saved")
}

func TestKeysOfWhichNothingIsSpentAreForgotten(t *testing.T) {
	var r Ration[int]
	now := time.Now()
	for i := range 10 * maxKeys {
		now = now.Add(Pause)
		assert.True(t, r.Take(i, now))
	}
	assert.LessOrEqual(t, len(r.state), maxKeys)
}
