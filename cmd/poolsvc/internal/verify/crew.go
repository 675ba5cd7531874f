package verify

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// role says how to start a worker: the library that it uses, and further options.
type role struct {
	consumer    string
	env         string // NAME=value, one more environment variable; empty for none
	flag, value string // one more flag; empty for none
}

// crew starts workers before the checks that need them, because a worker needs most of its starting time for imports.
type crew struct {
	start   func(role) (*worker, error)
	prepare func(*worker, role) error
	limit   int // greatest number of waiting workers

	mu      sync.Mutex
	planned []booking // not started yet, in the order of the checks
	waiting []*understudy
}

// booking is a role that a check needs. check is the number of the check.
type booking struct {
	check int
	role  role
}

// understudy is a worker that was started before its check.
type understudy struct {
	booking
	worker *worker
	ready  chan struct{} // closed when the worker is prepared, or that has failed
	err    error         // set before ready is closed
}

// startAhead starts planned workers while there is room. The caller holds c.mu.
func (c *crew) startAhead() {
	for len(c.waiting) < c.limit && len(c.planned) > 0 {
		u := &understudy{booking: c.planned[0], ready: make(chan struct{})}
		c.planned = c.planned[1:]
		c.waiting = append(c.waiting, u)
		go func() {
			defer close(u.ready)
			if u.worker, u.err = c.start(u.role); u.err == nil {
				u.err = c.prepare(u.worker, u.role)
			}
		}()
	}
}

// begin starts workers for a check and the later ones. It ends the workers that earlier checks did not take.
func (c *crew) begin(check int) error {
	c.mu.Lock()
	c.planned = slices.DeleteFunc(c.planned, func(b booking) bool { return b.check < check })
	var left []*understudy
	c.waiting = slices.DeleteFunc(c.waiting, func(u *understudy) bool {
		if u.check < check {
			left = append(left, u)
		}
		return u.check < check
	})
	c.startAhead()
	c.mu.Unlock()
	return stopAll(left)
}

// awaitPrepared waits until the started workers are prepared, so that they do not disturb measurements.
func (c *crew) awaitPrepared() {
	c.mu.Lock()
	waiting := slices.Clone(c.waiting)
	c.mu.Unlock()
	for _, u := range waiting {
		<-u.ready
	}
}

// take returns a worker for a role: one that was started before, or a new one.
func (c *crew) take(r role) (*worker, error) {
	c.mu.Lock()
	i := slices.IndexFunc(c.waiting, func(u *understudy) bool { return u.role == r })
	if i < 0 {
		if j := slices.IndexFunc(c.planned, func(b booking) bool { return b.role == r }); j >= 0 {
			c.planned = slices.Delete(c.planned, j, j+1)
		}
		c.mu.Unlock()
		return c.start(r)
	}
	u := c.waiting[i]
	c.waiting = slices.Delete(c.waiting, i, i+1)
	c.startAhead()
	c.mu.Unlock()
	<-u.ready
	if u.err != nil && u.worker != nil {
		u.worker.kill()
	}
	return u.worker, u.err
}

// close ends the workers that no check took.
func (c *crew) close() error {
	c.mu.Lock()
	left := c.waiting
	c.planned, c.waiting = nil, nil
	c.mu.Unlock()
	return stopAll(left)
}

func stopAll(left []*understudy) error {
	var errs []error
	for _, u := range left {
		<-u.ready
		if u.worker != nil {
			errs = append(errs, u.worker.stop())
		}
		if u.err != nil {
			errs = append(errs, fmt.Errorf("a worker for %s that no check used: %w", u.role.consumer, u.err))
		}
	}
	return errors.Join(errs...)
}
