package bridge

import (
	"context"
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/program"
	"github.com/poolbridge/poolbridge/mempool"
)

// The situations in which a request fails. errors.Is finds them, on both sides of the socket.
var (
	ErrProtocol     = errors.New("protocol error")
	ErrVersion      = errors.New("no common protocol version")
	ErrUnsupported  = errors.New("not supported by the service")
	ErrCancelled    = errors.New("request cancelled")
	ErrInvalid      = mempool.ErrInvalid
	ErrNotFound     = mempool.ErrNotFound
	ErrExists       = mempool.ErrExists
	ErrLimit        = mempool.ErrLimit
	ErrOutOfMemory  = mempool.ErrOutOfMemory
	ErrDenied       = mempool.ErrDenied
	ErrTimeout      = mempool.ErrTimeout
	ErrBusy         = mempool.ErrBusy
	ErrReleased     = mempool.ErrReleased
	ErrSettled      = mempool.ErrSettled
	ErrStale        = mempool.ErrStale
	ErrProducerDied = mempool.ErrProducerDied
	ErrClosed       = mempool.ErrClosed
	ErrUnavailable  = mempool.ErrUnavailable
	ErrInternal     = mempool.ErrInternal
)

// ErrNotRunning means that no service listens on the socket.
var ErrNotRunning = errors.New("no service is running")

// ErrDisconnected means that the connection to the service is gone, and with it the session.
var ErrDisconnected = errors.New("disconnected from the service")

// codes maps the errors of this package to the codes of the protocol.
var codes = []struct {
	code     wire.Code
	sentinel error
}{
	{wire.CodeProtocol, ErrProtocol},
	{wire.CodeVersion, ErrVersion},
	{wire.CodeUnsupported, ErrUnsupported},
	{wire.CodeCancelled, ErrCancelled},
	{wire.CodeInvalid, ErrInvalid},
	{wire.CodeNotFound, ErrNotFound},
	{wire.CodeExists, ErrExists},
	{wire.CodeLimit, ErrLimit},
	{wire.CodeMemory, ErrOutOfMemory},
	{wire.CodeDenied, ErrDenied},
	{wire.CodeTimeout, ErrTimeout},
	{wire.CodeBusy, ErrBusy},
	{wire.CodeReleased, ErrReleased},
	{wire.CodeStale, ErrStale},
	{wire.CodeFailed, ErrProducerDied},
	{wire.CodeClosed, ErrClosed},
	{wire.CodeUnavailable, ErrUnavailable},
	{wire.CodeInternal, ErrInternal},
}

// Code returns the code that docs/protocol.md has for an error, or "" if there is none.
func Code(err error) string {
	for _, c := range codes {
		if errors.Is(err, c.sentinel) {
			return string(c.code)
		}
	}
	return ""
}

// wireError returns an error in the form of the protocol.
func wireError(err error) *wire.Error {
	if e := wire.AsError(err); e.Code != wire.CodeInternal {
		return e
	}
	if errors.Is(err, context.Canceled) {
		err = fmt.Errorf("%w by its client", ErrCancelled)
	}
	for _, c := range codes {
		if errors.Is(err, c.sentinel) {
			return &wire.Error{Code: c.code, Message: err.Error()}
		}
	}
	return wire.AsError(err)
}

// RemoteError is an error that the service reported. It unwraps to one of the sentinels of this package.
type RemoteError struct {
	// Op is the operation that failed.
	Op string
	// Message is the text of the service.
	Message   string
	situation error
}

func (e *RemoteError) Error() string { return fmt.Sprintf("poolbridge %s: %s", e.Op, e.Message) }
func (e *RemoteError) Unwrap() error { return e.situation }

// useOneVersion is the advice where client and service do not know the same requests.
const useOneVersion = "use one version of poolbridge on both sides, and start the service again"

// remoteError returns the error that the service reported.
func remoteError(op string, err *wire.Error) error {
	for _, c := range codes {
		if c.code != err.Code {
			continue
		}
		message := err.Message
		if c.code == wire.CodeUnsupported {
			message += fmt.Sprintf("; this client is of poolbridge %s: %s", program.Version(), useOneVersion)
		}
		return &RemoteError{Op: op, Message: message, situation: c.sentinel}
	}
	return &RemoteError{Op: op, Message: err.Error(), situation: ErrInternal}
}
