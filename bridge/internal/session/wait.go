package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Attempt says whether a call waits.
type Attempt bool

// Waiting calls wait until their context ends. A call that is made Once does not wait.
const (
	Waiting Attempt = false
	Once    Attempt = true
)

// Wait sends a request that may wait at the service, and sends it again until it succeeds, fails for another reason than its time limit, or
// ctx ends. Before each sending, Wait sets *limit, the request's time limit, to the time until the deadline of ctx, but at most to
// LongestWait. If the deadline passes, the error wraps the error of ctx and the error that a request without waiting would get. If `try` is
// Once, Wait sends the request once and does not use `limit`.
func (s *Session) Wait(ctx context.Context, try Attempt, r wire.Request, limit *uint64, c Call) error {
	for {
		next, left, last := c, s.LongestWait, false
		if try == Waiting {
			if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= left {
				left, last = max(time.Until(deadline), 0), true
			}
			*limit, next.grace = wireWait(left), s.DeadlineGrace
		}
		began := time.Now()
		err := s.do(ctx, r, &next)
		refused, isRefused := errors.AsType[*refusal](err)
		switch {
		case try == Once || !isRefused || !refused.temporary() || time.Since(began) < left: // the time limit is not the cause of this answer
			return s.explain(err)
		case last:
			return Late(ctx, s.explain(refused.late()))
		}
	}
}

// wireWait returns a time limit in milliseconds, rounded up, so that the service's limit does not pass before the caller's deadline.
func wireWait(d time.Duration) uint64 {
	return uint64(max(0, d+time.Millisecond-1) / time.Millisecond)
}

// temporary reports whether a refusal may mean only that the request's time limit has passed.
func (r *refusal) temporary() bool {
	return slices.Contains([]wire.Code{wire.CodeTimeout, wire.CodeNotFound, wire.CodeBusy, wire.CodeLimit, wire.CodeMemory}, r.why.Code)
}

// late returns the refusal of a request that waited until its deadline. If the request waited for a name that did not appear, the service
// answers with CodeTimeout, and late returns CodeNotFound instead.
func (r *refusal) late() *refusal {
	if r.why.Code != wire.CodeTimeout {
		return r
	}
	return &refusal{r.op, &wire.Error{Code: wire.CodeNotFound, Message: strings.TrimPrefix(r.why.Message, mempool.ErrTimeout.Error()+": ")}}
}

// Late returns the error of a wait that ended at the deadline of ctx. missing says what the call waited for.
func Late(ctx context.Context, missing error) error {
	why := typed.Ended(ctx)
	if why == nil { // the context's own timer is about to fire
		why = context.DeadlineExceeded
	}
	return fmt.Errorf("%w (%w)", missing, why)
}
