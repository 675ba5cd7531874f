package mempool

import "errors"

// Sentinels for the ways in which operations of this package and of package service fail. Every error that they return wraps exactly one
// of them, except the errors of a context.
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
	// ErrContentFailed means that the content of a buffer will never be complete. The text says why, if its producer has said so.
	ErrContentFailed = errors.New("content failed")
	// ErrProducerDied means that the content failed because its producer died. errors.Is finds ErrContentFailed in it, too.
	ErrProducerDied error = contentFailure("producer died before finishing")

	ErrClosed      = errors.New("closed")
	ErrUnavailable = errors.New("not available on this machine")
	ErrInternal    = errors.New("internal error")
)

// contentFailure is a sentinel that is an ErrContentFailed, too.
type contentFailure string

func (e contentFailure) Error() string        { return string(e) }
func (e contentFailure) Is(target error) bool { return target == ErrContentFailed }

// ErrRecalling is joined with [ErrLimit] or [ErrOutOfMemory] if room may come: unused blocks are about to be freed, or unmapped by
// sessions.
var ErrRecalling = errors.New("unused blocks are being asked back")

// ErrWanted is joined with [ErrLimit] if room may come soon: the service has just asked sessions with producers for the leases that they
// keep for their next frames. See WantedTime of package service.
var ErrWanted = errors.New("producers were asked for what they keep")
