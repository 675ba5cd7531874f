package bridge

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
)

func TestEverySituationSurvivesTheWire(t *testing.T) {
	for _, sentinel := range []error{ErrProtocol, ErrVersion, ErrUnsupported, ErrCancelled, ErrInvalid, ErrNotFound, ErrExists, ErrLimit, ErrOutOfMemory,
		ErrDenied, ErrTimeout, ErrBusy, ErrReleased, ErrStale, ErrProducerDied, ErrContentFailed, ErrClosed, ErrUnavailable, ErrInternal} {
		sent := convert.WireError(typed.Errorf(sentinel, "because"))
		got := remoteError("get", sent)
		assert.ErrorIs(t, got, sentinel)
		assert.ErrorContains(t, got, "because")
		assert.Equal(t, string(sent.Code), Code(got))
	}
}

func TestACodeOfALaterServiceIsAnInternalError(t *testing.T) {
	err := remoteError("get", &wire.Error{Code: "later", Message: "m"})
	assert.ErrorIs(t, err, ErrInternal)
	assert.EqualError(t, err, "poolbridge get: later: m")
}

func TestARemoteErrorSaysWhatFailed(t *testing.T) {
	err := remoteError("get", &wire.Error{Code: wire.CodeBusy, Message: "buffer is busy: with something"})
	assert.EqualError(t, err, "poolbridge get: buffer is busy: with something")
}
