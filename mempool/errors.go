package mempool

import "errors"

// These are the sentinels of the errors that functions of this package and of package service return. Every error of these functions wraps
// exactly one of the sentinels, except the errors of a context.
var (
	ErrInvalid     = errors.New("invalid argument")
	ErrNotFound    = errors.New("not found")
	ErrExists      = errors.New("already exists")
	ErrLimit       = errors.New("limit reached")
	ErrOutOfMemory = errors.New("out of memory")
	ErrDenied      = errors.New("access denied")
	ErrTimeout     = errors.New("timed out")
	ErrBusy        = errors.New("buffer is busy")
	ErrReleased    = errors.New("lease has ended")
	ErrSettled     = errors.New("frame is settled")
	ErrStale       = errors.New("stale id")
	// ErrContentFailed means that the content of a buffer will never be complete. The text of the error gives the reason, if the producer
	// of the content gave one.
	ErrContentFailed = errors.New("content failed")
	// ErrProducerDied means that the content failed because its producer died. errors.Is also finds ErrContentFailed in this error.
	ErrProducerDied error = contentFailure("producer died before finishing")

	ErrClosed      = errors.New("closed")
	ErrUnavailable = errors.New("not available on this machine")
	ErrInternal    = errors.New("internal error")
)

// contentFailure is a sentinel in which errors.Is also finds ErrContentFailed.
type contentFailure string

func (e contentFailure) Error() string        { return string(e) }
func (e contentFailure) Is(target error) bool { return target == ErrContentFailed }

// ErrRecalling is joined with [ErrLimit] or [ErrOutOfMemory] if the same call may succeed later: the service is about to free unused
// blocks, or sessions are about to unmap unused blocks.
var ErrRecalling = errors.New("unused blocks are being asked back")

// ErrWanted is joined with [ErrLimit] if the same call may succeed soon: the service has just asked sessions to release the memory that they
// keep for their next frames and arrays. See the constant WantedTime of package service.
var ErrWanted = errors.New("programs were asked for what they keep")
