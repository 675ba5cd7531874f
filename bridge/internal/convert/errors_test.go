package convert

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
)

func TestEveryCodeHasOneError(t *testing.T) {
	seen := make(map[wire.Code]bool)
	for _, c := range codes {
		assert.False(t, seen[c.code], "%s stands twice", c.code)
		seen[c.code] = true
		assert.Equal(t, c.code, WireError(typed.Errorf(c.sentinel, "because")).Code)
		assert.Equal(t, c.sentinel, Sentinel(c.code))
	}
	assert.Len(t, codes, 19)
	assert.NoError(t, Sentinel("later"))
}

func TestAnErrorWithoutACodeIsInternal(t *testing.T) {
	assert.Equal(t, wire.CodeInternal, WireError(errors.New("what?")).Code)
}

func TestTheEndOfAContextIsACancellation(t *testing.T) {
	assert.Equal(t, wire.CodeCancelled, WireError(fmt.Errorf("waiting: %w", context.Canceled)).Code)
}
