package bridge

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/situation"
)

func TestEverySituationSurvivesTheWire(t *testing.T) {
	seen := make(map[wire.Code]bool)
	for _, c := range codes {
		assert.False(t, seen[c.code], "%s stands twice", c.code)
		seen[c.code] = true
		sent := wireError(situation.Of(c.sentinel, "because"))
		assert.Equal(t, c.code, sent.Code)
		assert.ErrorIs(t, remoteError("get", sent), c.sentinel)
	}
	assert.Len(t, codes, 18)
}

func TestErrorsThatNobodyForesawAreInternal(t *testing.T) {
	assert.Equal(t, wire.CodeInternal, wireError(errors.New("what?")).Code)
	assert.ErrorIs(t, remoteError("get", &wire.Error{Code: "later", Message: "m"}), ErrInternal)
}

func TestTheEndOfAContextIsACancellation(t *testing.T) {
	assert.Equal(t, wire.CodeCancelled, wireError(fmt.Errorf("waiting: %w", context.Canceled)).Code)
}

func TestARemoteErrorSaysWhatFailed(t *testing.T) {
	err := remoteError("get", &wire.Error{Code: wire.CodeBusy, Message: "buffer is busy: with something"})
	assert.EqualError(t, err, "poolbridge get: buffer is busy: with something")
}
