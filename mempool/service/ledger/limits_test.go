package ledger

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestLimitsAreSetByName(t *testing.T) {
	var l Limits
	require.NoError(t, l.Set("user-names", 7))
	assert.Equal(t, Limits{UserNames: 7}, l)
	full := l.Filled()
	assert.Equal(t, 7, full.UserNames)
	for _, one := range full.all() {
		assert.Positive(t, *one.value, one.name)
	}
	assert.ErrorIs(t, l.Set("names", 7), mempool.ErrInvalid)
	assert.ErrorContains(t, l.Set("names", 7), "user-names")
	assert.ErrorContains(t, l.Set("buffers", 0), "1 or more")
}
