package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// waits are the requests of a session that wait.
type waits struct {
	mu      sync.Mutex
	cancels map[uint64]context.CancelFunc // by number; a request without a number gets a key above MaxQuery
	unnamed uint64                        // how many requests without a number have waited
}

// waitFor answers request q from a new goroutine: the function `attempt` waits, and returns a function that sends the answer. err says why
// the request cannot be answered at once; if too many requests wait, the client's error contains err.
func (c *connection) waitFor(q uint32, err error, attempt func(context.Context) (answer func())) {
	if refused := c.wait(q, attempt); refused != nil {
		c.fail(q, fmt.Errorf("%w (%s)", refused, err.Error()))
	}
}

// answerInTime answers request q by the function that `attempt` returns. If an attempt that does not wait fails with the error `missing`, and the
// request may wait, answerInTime makes another attempt, from a new goroutine.
func (c *connection) answerInTime(q uint32, wait uint64, missing error, attempt func(ctx context.Context, wait time.Duration) (answer func(), err error)) {
	answer, err := attempt(c.ctx, 0)
	if wait == 0 || q == 0 || !errors.Is(err, missing) {
		answer()
		return
	}
	c.waitFor(q, err, func(ctx context.Context) func() {
		answer, _ := attempt(ctx, milliseconds(wait)) // the answer has the error
		return answer
	})
}

// wait is like waitFor, but returns an error if too many requests wait: the caller then answers the request.
func (c *connection) wait(q uint32, attempt func(context.Context) (answer func())) error {
	ctx, cancel := context.WithCancel(service.WithQuery(c.ctx, q))
	key, err := c.waits.add(q, cancel, c.limits.Waiting)
	if err != nil {
		cancel()
		return err
	}
	if err := c.server.admitWait(c); err != nil {
		c.waits.remove(key)
		return err
	}
	c.work.Go(func() {
		answer := attempt(ctx)
		c.waits.remove(key) // before the answer, because after the answer the client may use the number again
		c.server.waits.Add(-1)
		if c.ctx.Err() == nil { // if the session has ended, goodbye is the answer
			answer()
		}
	})
	return nil
}

// admitWait counts a request of a client that begins to wait. It returns an error if too many requests wait. While clients come back from a
// predecessor, they send again what waited there, so that admitWait returns no error for these clients.
func (s *Server) admitWait(c *connection) error {
	again := c.resumed && time.Now().Before(s.svc.ResumeBy())
	if most := int(s.maxWaits.Load()); s.waits.Add(1) > int64(most-s.reserve(c.peer, most)) && !again {
		s.waits.Add(-1)
		return &service.LimitError{Limit: "waits", Max: most, Who: "the service", What: "requests that wait", Have: most, Advice: "ask again later"}
	}
	return nil
}

// add records that request q waits. cancel ends the wait. `most` is how many requests may wait.
func (w *waits) add(q uint32, cancel context.CancelFunc, most int) (key uint64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.cancels) >= most {
		return 0, typed.Errorf(mempool.ErrLimit, "%d requests of this session wait, which is the limit: wait for an answer, or cancel one", len(w.cancels))
	}
	key = uint64(q)
	if q == 0 {
		w.unnamed++
		key = wire.MaxQuery + w.unnamed
	}
	w.cancels[key] = cancel
	return key, nil
}

// has reports whether request q waits. If q is 0, the result is false.
func (w *waits) has(q uint32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return q != 0 && w.cancels[uint64(q)] != nil
}

// remove records that a request no longer waits, and ends its wait.
func (w *waits) remove(key uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancels[key]()
	delete(w.cancels, key)
}

// stop cancels request q, if it waits.
func (w *waits) stop(q uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if q > wire.MaxQuery {
		return
	}
	if cancel := w.cancels[q]; cancel != nil {
		cancel()
	}
}
