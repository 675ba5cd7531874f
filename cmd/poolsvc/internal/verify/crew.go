package verify

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// role says how to start a worker: with which library and with which further options.
type role struct {
	consumer    string
	env         string // NAME=value: an additional environment variable; empty: none
	flag, value string // an additional flag and its value; empty: none
}

// crew starts workers before the checks that need them begin. So a check does not wait while its worker imports Python libraries, which
// takes long. The crew also keeps each shared worker alive while no check uses it.
type crew struct {
	start   func(role) (*worker, error)
	prepare func(*worker, role) error
	limit   int // greatest number of started workers that wait for a check

	mu      sync.Mutex
	planned []booking // workers that are not started yet, in the order of the checks
	waiting []*understudy
	idle    map[string][]*worker // idle shared workers, by their name; workers of one name are interchangeable
}

// booking says that a check needs a worker with a role.
type booking struct {
	check int // number of the check that needs the worker, or severalChecks
	role  role
}

// severalChecks stands for the number of the check in a booking whose worker several checks use, one after another.
const severalChecks = -1

// understudy is a worker that the crew started before the check asked for it.
type understudy struct {
	booking
	worker *worker
	ready  chan struct{} // closed when the worker is prepared, or when starting or preparing the worker has failed
	err    error         // set before ready is closed
}

// startAhead starts planned workers until limit workers wait for a check. The caller holds c.mu.
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

// begin replaces the plan, and starts the first planned workers.
func (c *crew) begin(planned []booking) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.planned = planned
	c.startAhead()
}

// done ends the workers that were started for the check and that the check did not take.
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

// awaitPrepared waits until all started workers are prepared, so that their imports do not disturb measurements.
func (c *crew) awaitPrepared() {
	c.mu.Lock()
	waiting := slices.Clone(c.waiting)
	c.mu.Unlock()
	for _, u := range waiting {
		<-u.ready
	}
}

// take returns a worker for a booking: the worker that the crew started for this booking, or else a new worker.
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

// hire returns an idle worker with this name. If there is none, it returns a new worker for the library `consumer`. No other check gets the
// worker until the caller calls dismiss.
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

// dismiss keeps the worker for the next check that hires a worker with this name. If the worker has ended, dismiss does nothing.
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

// close ends all workers that no check uses, all at the same time.
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

// endUnused ends workers that the crew started and that no check used.
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
