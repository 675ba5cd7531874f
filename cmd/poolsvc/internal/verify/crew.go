package verify

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// role is what a worker is started for: the library that it uses, and what it is told besides.
type role struct {
	consumer    string
	env         string // NAME=value, a variable more; empty for none
	flag, value string // one flag more; empty for none
}

// crew starts workers before the checks that need them: most of the time that a worker takes to start goes into imports.
type crew struct {
	start   func(role) (*worker, error)
	prepare func(*worker, role) error
	limit   int // workers that wait to be used

	mu      sync.Mutex
	planned []booking // not started, in the order of the checks
	waiting []*understudy
}

// booking is a role of a check, by the number of the check.
type booking struct {
	check int
	role  role
}

// understudy is a worker that was started ahead.
type understudy struct {
	booking
	worker *worker
	ready  chan struct{} // closed when it is prepared, or could not be
	err    error         // set before ready is closed
}

// startAhead starts planned workers as long as there is room. c.mu is held.
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

// begin starts workers for the checks from one on, and ends those that earlier checks did not take.
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

// awaitPrepared waits until those that were started are prepared: they do not disturb what a check measures.
func (c *crew) awaitPrepared() {
	c.mu.Lock()
	waiting := slices.Clone(c.waiting)
	c.mu.Unlock()
	for _, u := range waiting {
		<-u.ready
	}
}

// take gives a worker for a role: one that was started ahead, or a new one.
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

// close ends the workers that nobody took.
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
