package mempool

import "errors"

// The situations in which an operation of this package or of package service fails. Every error that they return wraps exactly
// one of them, except those of a context.
var (
	ErrInvalid      = errors.New("invalid argument")
	ErrNotFound     = errors.New("not found")
	ErrExists       = errors.New("already exists")
	ErrLimit        = errors.New("limit reached")
	ErrOutOfMemory  = errors.New("out of memory")
	ErrDenied       = errors.New("access denied")
	ErrTimeout      = errors.New("timed out")
	ErrBusy         = errors.New("buffer is busy")
	ErrReleased     = errors.New("lease has ended")
	ErrSettled      = errors.New("frame is settled")
	ErrStale        = errors.New("stale id")
	ErrProducerDied = errors.New("producer died before finishing")
	ErrClosed       = errors.New("closed")
	ErrUnavailable  = errors.New("not available on this machine")
	ErrInternal     = errors.New("internal error")
)

// ErrRecalling comes along with [ErrLimit] where room is on its way: blocks that nobody uses have been asked back from
// the sessions that map them.
var ErrRecalling = errors.New("unused blocks are being asked back")

// ErrWanted comes along with [ErrLimit] where room may come at once: sessions that have producers were asked just now for the
// leases that they keep for their next frames. See WantedTime of package service.
var ErrWanted = errors.New("producers were asked for what they keep")
