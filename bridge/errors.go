package bridge

import (
	"context"
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/internal/stream"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/program"
	"github.com/poolbridge/poolbridge/mempool"
)

// The errors of requests. errors.Is finds them in every error of a [Client], a [Pool], a [Lease] and a [Channel]. [Code] returns the code
// of such an error.
var (
	ErrProtocol      = convert.ErrProtocol      // a packet is malformed or comes at the wrong time; the session ends
	ErrVersion       = convert.ErrVersion       // client and service share no version of the protocol
	ErrUnsupported   = convert.ErrUnsupported   // the service does not know the operation, or the session lacks its feature
	ErrCancelled     = convert.ErrCancelled     // the client has cancelled the request
	ErrInvalid       = mempool.ErrInvalid       // an argument is out of range, has a wrong form, or contradicts another one
	ErrNotFound      = mempool.ErrNotFound      // there is no such pool, name or channel that this user may see
	ErrExists        = mempool.ErrExists        // the name is taken
	ErrLimit         = mempool.ErrLimit         // the request exceeds a limit of the pool, the session or the service
	ErrOutOfMemory   = mempool.ErrOutOfMemory   // the device or the machine has no memory left
	ErrDenied        = mempool.ErrDenied        // this user may not carry out the operation
	ErrTimeout       = mempool.ErrTimeout       // a time limit passed; calls of this package wrap context.DeadlineExceeded instead
	ErrBusy          = mempool.ErrBusy          // another lease, or work on the memory, excludes the request now
	ErrReleased      = mempool.ErrReleased      // the lease has ended
	ErrSettled       = mempool.ErrSettled       // the frame was acknowledged or requeued
	ErrStale         = mempool.ErrStale         // the id is of an earlier use of the block, or of an earlier run of the service
	ErrProducerDied  = mempool.ErrProducerDied  // the process that wrote the buffer died before the content was complete
	ErrContentFailed = mempool.ErrContentFailed // the content of the buffer will never be complete; ErrProducerDied wraps it
	ErrClosed        = mempool.ErrClosed        // the client, the pool, the channel or the service is closed
	ErrUnavailable   = mempool.ErrUnavailable   // this machine does not support the operation
	ErrInternal      = mempool.ErrInternal      // the service has a defect
)

// ErrFrameCorrupt means that what a producer wrote about a frame cannot be true, so the frame cannot be used. Other frames are not affected.
// It wraps [ErrContentFailed].
var ErrFrameCorrupt = stream.ErrFrameCorrupt

// ErrNoProducers means that every producer of a channel has left without closing it. It wraps [ErrClosed].
var ErrNoProducers = stream.ErrNoProducers

// ErrMetadataMismatch means that a buffer has other metadata than [LeaseOptions] says, for example because it is of another model.
var ErrMetadataMismatch = errors.New("the buffer has other metadata: publish what is expected, or change Expect")

// ErrNotRunning means that no service listens on the socket.
var ErrNotRunning = errors.New("no service is running")

// ErrDisconnected means that the connection to the service is gone. The session has ended with the connection.
var ErrDisconnected = session.ErrDisconnected

// Code returns the code of an error, or "" if the error has no code. docs/protocol.md lists the codes. An error that wraps
// [context.DeadlineExceeded] has the code of [ErrTimeout].
func Code(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return string(wire.CodeTimeout)
	}
	return string(convert.Code(err))
}

// RemoteError is an error that the service reported. It wraps one of the Err variables of this package.
type RemoteError struct {
	// Op is the operation that failed.
	Op string
	// Message is the text of the service.
	Message   string
	situation error
}

func (e *RemoteError) Error() string { return fmt.Sprintf("poolbridge %s: %s", e.Op, e.Message) }
func (e *RemoteError) Unwrap() error { return e.situation }

// useOneVersion is the advice in an error if client and service do not know the same requests.
const useOneVersion = "use one version of poolbridge on both sides, and start the service again"

// remoteError returns the error that the service reported.
func remoteError(op string, err *wire.Error) error {
	situation := convert.Sentinel(err.Code)
	if situation == nil {
		return &RemoteError{Op: op, Message: err.Error(), situation: ErrInternal}
	}
	message := err.Message
	if err.Code == wire.CodeUnsupported {
		message += fmt.Sprintf("; this client is of poolbridge %s: %s", program.Version(), useOneVersion)
	}
	return &RemoteError{Op: op, Message: message, situation: situation}
}
