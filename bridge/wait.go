package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/situation"
)

const (
	// longestWait is how long the protocol allows one request to wait at the service. If a call may wait longer, the client sends the request
	// again after this time.
	longestWait = 24 * time.Hour
	// deadlineGrace is how long a call still waits for the service's answer after the deadline of the call's context. This answer says what
	// the call waited for.
	deadlineGrace = 250 * time.Millisecond
)

// attempt says whether a call waits.
type attempt bool

const (
	waiting attempt = false // until the context ends
	once    attempt = true  // the call does not wait
)

// wait sends a request that may wait at the service. `limit` points to the request's field for its time limit: wait sets this field to the
// time until the deadline of ctx. If the deadline passes, the error wraps the error of ctx and the error that a request without waiting
// would get. If `try` is `once`, the request does not wait, and the method wait does not use `limit`.
func (c *Client) wait(ctx context.Context, try attempt, r wire.Request, limit *uint64, pending call) error {
	for {
		next, left, last := pending, c.longestWait, false
		if !try {
			if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= left {
				left, last = max(time.Until(deadline), 0), true
			}
			*limit, next.grace = wireWait(left), c.deadlineGrace
		}
		began := time.Now()
		err := c.call(ctx, r, &next)
		remote, refused := errors.AsType[*RemoteError](err)
		switch {
		case bool(try) || !refused || !remote.temporary() || time.Since(began) < left: // the time limit is not the cause of this answer
			return err
		case last:
			return remote.late(ctx)
		}
	}
}

// wireWait returns a time limit in milliseconds, rounded up, so that the service's limit does not pass before the caller's deadline.
func wireWait(d time.Duration) uint64 {
	return uint64(max(0, d+time.Millisecond-1) / time.Millisecond)
}

// temporary reports whether this error may mean only that the request's time limit has passed.
func (e *RemoteError) temporary() bool {
	return slices.Contains([]error{ErrTimeout, ErrNotFound, ErrBusy, ErrLimit, ErrOutOfMemory}, e.situation)
}

// late returns the error of a request that waited until the deadline of ctx. If the request waited for a name that did not appear, the
// service answers with ErrTimeout, and the returned error wraps [ErrNotFound] instead.
func (e *RemoteError) late(ctx context.Context) error {
	if errors.Is(e, ErrTimeout) {
		e.situation, e.Message = ErrNotFound, strings.TrimPrefix(e.Message, ErrTimeout.Error()+": ")
	}
	return late(ctx, e)
}

// late returns the error of a wait that ended at the deadline of ctx. missing says what the call waited for.
func late(ctx context.Context, missing error) error {
	why := situation.Ended(ctx)
	if why == nil { // the context's own timer is about to fire
		why = context.DeadlineExceeded
	}
	return fmt.Errorf("%w (%w)", missing, why)
}
