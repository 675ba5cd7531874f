package verify

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// role says how to start a worker: the library that it uses, and further options.
type role struct {
	consumer    string
	env         string // NAME=value, one more environment variable; empty for none
	flag, value string // one more flag; empty for none
}

// crew starts workers before the checks that need them, because a worker needs most of its starting time for imports. It keeps the workers
// that checks share while no check uses them.
type crew struct {
	start   func(role) (*worker, error)
	prepare func(*worker, role) error
	limit   int // greatest number of waiting workers

	mu      sync.Mutex
	planned []booking // not started yet, in the order of the checks
	waiting []*understudy
	idle    map[string][]*worker // by a name for workers that can stand in for each other
}

// booking is a role that a check needs.
type booking struct {
	check int // number of the check, or severalChecks
	role  role
}

// severalChecks is a booking's number of the check if several checks use the worker, one after another.
const severalChecks = -1

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

// begin starts the first of the planned workers.
func (c *crew) begin(planned []booking) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.planned = planned
	c.startAhead()
}

// done ends the workers that a check did not take.
func (c *crew) done(check int) error {
	of := func(b booking) bool { return b.check == check }
	c.mu.Lock()
	c.planned = slices.DeleteFunc(c.planned, of)
	var left []*understudy
	c.waiting = slices.DeleteFunc(c.waiting, func(u *understudy) bool {
		if of(u.booking) {
			left = append(left, u)
		}
		return of(u.booking)
	})
	c.startAhead()
	c.mu.Unlock()
	return endUnused(left)
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

// take returns the worker for a booking: one that was started before, or a new one.
func (c *crew) take(b booking) (*worker, error) {
	c.mu.Lock()
	i := slices.IndexFunc(c.waiting, func(u *understudy) bool { return u.booking == b })
	if i < 0 {
		if j := slices.Index(c.planned, b); j >= 0 {
			c.planned = slices.Delete(c.planned, j, j+1)
		}
		c.mu.Unlock()
		return c.start(b.role)
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

// hire returns an idle worker of a name, or else one that uses a library. No other check gets the worker until the caller calls dismiss.
func (c *crew) hire(name, consumer string) (*worker, error) {
	c.mu.Lock()
	if n := len(c.idle[name]); n > 0 {
		w := c.idle[name][n-1]
		c.idle[name] = c.idle[name][:n-1]
		c.mu.Unlock()
		return w, nil
	}
	c.mu.Unlock()
	return c.take(booking{severalChecks, role{consumer: consumer}})
}

// dismiss keeps a worker for the next check that hires one of this name, unless the worker is gone.
func (c *crew) dismiss(name string, w *worker) {
	if w.gone {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle == nil {
		c.idle = make(map[string][]*worker)
	}
	c.idle[name] = append(c.idle[name], w)
}

// close ends the workers that no check has, all at the same time.
func (c *crew) close() error {
	c.mu.Lock()
	left, idle := c.waiting, c.idle
	c.planned, c.waiting, c.idle = nil, nil, nil
	c.mu.Unlock()
	var ending errgroup.Group
	ending.Go(func() error { return endUnused(left) })
	for name, workers := range idle {
		for _, w := range workers {
			ending.Go(func() error {
				if err := w.stop(); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				return nil
			})
		}
	}
	return ending.Wait()
}

// endUnused ends workers that were started for nothing.
func endUnused(left []*understudy) error {
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
