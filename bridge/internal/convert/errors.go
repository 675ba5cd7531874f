package convert

import (
	"context"
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// These are the errors of the protocol itself. Package bridge has variables of the same names for them. Package mempool has the errors
// about memory.
var (
	ErrProtocol    = errors.New("protocol error")
	ErrVersion     = errors.New("no common protocol version")
	ErrUnsupported = errors.New("not supported by the service")
	ErrCancelled   = errors.New("request cancelled")
)

// codes has the code of each error.
var codes = []struct {
	code     wire.Code
	sentinel error
}{
	{wire.CodeProtocol, ErrProtocol},
	{wire.CodeVersion, ErrVersion},
	{wire.CodeUnsupported, ErrUnsupported},
	{wire.CodeCancelled, ErrCancelled},
	{wire.CodeInvalid, mempool.ErrInvalid},
	{wire.CodeNotFound, mempool.ErrNotFound},
	{wire.CodeExists, mempool.ErrExists},
	{wire.CodeLimit, mempool.ErrLimit},
	{wire.CodeMemory, mempool.ErrOutOfMemory},
	{wire.CodeDenied, mempool.ErrDenied},
	{wire.CodeTimeout, mempool.ErrTimeout},
	{wire.CodeBusy, mempool.ErrBusy},
	{wire.CodeReleased, mempool.ErrReleased},
	{wire.CodeStale, mempool.ErrStale},
	{wire.CodeFailed, mempool.ErrProducerDied}, // before ErrContentFailed, because ErrProducerDied wraps ErrContentFailed
	{wire.CodeContentFailed, mempool.ErrContentFailed},
	{wire.CodeClosed, mempool.ErrClosed},
	{wire.CodeUnavailable, mempool.ErrUnavailable},
	{wire.CodeInternal, mempool.ErrInternal},
}

// Code returns the code of an error, or "" if the error has no code.
func Code(err error) wire.Code {
	for _, c := range codes {
		if errors.Is(err, c.sentinel) {
			return c.code
		}
	}
	return ""
}

// Sentinel returns the error that a code stands for, or nil for a code that this version does not know.
func Sentinel(code wire.Code) error {
	for _, c := range codes {
		if c.code == code {
			return c.sentinel
		}
	}
	return nil
}

// WireError returns an error in the form of package wire. An error without a code gets the code [wire.CodeInternal].
func WireError(err error) *wire.Error {
	if e := wire.AsError(err); e.Code != wire.CodeInternal {
		return e
	}
	if errors.Is(err, context.Canceled) {
		err = fmt.Errorf("%w by its client", ErrCancelled)
	}
	if code := Code(err); code != "" {
		return &wire.Error{Code: code, Message: err.Error()}
	}
	return wire.AsError(err)
}
