package service

import (
	"context"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/mempool"
)

// waiter limits how long a request of a session waits: until ctx ends or the deadline has passed. If the deadline is not set, the request
// does not wait at all, except in the method outlast.
type waiter struct {
	ctx      context.Context
	session  *Session
	deadline time.Time
	end      time.Time // deadline, or an earlier time while the request hurries
	timer    *time.Timer
	late     bool          // the time limit has passed
	least    time.Duration // if not 0: an allocation waits no longer than this while no block of its pool is about to be freed
	began    time.Time
	purpose  purpose
	entered  *wait // nil until the request waits for the first time
	// long is called once, with Service.mu held, when the wait takes longer than the service's patience; it may be nil.
	long func(waited time.Duration)
	err  error // the context's error, if the context ended the wait
}

// These are the kinds of things that sessions wait for.
const (
	forRoom      = "room"
	forBuffer    = "buffer"
	forName      = "name"
	forPool      = "pool"
	forChannel   = "channel"
	forConsumers = "consumers"
)

func (p *purpose) String() string {
	switch p.what {
	case forRoom:
		return fmt.Sprintf("%s in pool %q", bytesize.Text(p.bytes), p.name)
	case forBuffer:
		return fmt.Sprintf("buffer %d", p.buffer)
	case forName:
		return fmt.Sprintf("the name %q", p.name)
	case forConsumers:
		return fmt.Sprintf("consumers of channel %q", p.name)
	}
	return fmt.Sprintf("%s %q", p.what, p.name)
}

// enter notes that the request waits; leave undoes enter. The caller holds Service.mu.
func (w *waiter) enter() {
	s := w.session
	if w.entered == nil {
		w.entered = &wait{since: time.Now()}
	}
	w.entered.purpose = w.purpose
	if s.waits == nil {
		s.waits = make(waits)
	}
	s.waits[w.entered] = struct{}{}
	s.svc.waiting[w.purpose.what]++
}

func (w *waiter) leave() {
	delete(w.session.waits, w.entered)
	w.session.svc.waiting[w.purpose.what]--
}

// Counts returns the numbers of events and of driver calls since the service started, and the number of requests that wait now.
func (s *Service) Counts() mempool.Counts {
	c := s.eventLog.Counts()
	c.Waiting = make(map[string]int)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, what := range []string{forRoom, forBuffer, forName, forPool, forChannel, forConsumers} {
		c.Waiting[what] = s.waiting[what]
	}
	return c
}

func newWaiter(ctx context.Context, s *Session, limit time.Duration, p purpose) waiter {
	w := waiter{ctx: ctx, session: s, purpose: p}
	if limit > 0 {
		w.began = time.Now()
		w.deadline = w.began.Add(limit)
		w.end = w.deadline
	}
	return w
}

// patient says whether the request may wait: whether the deadline is set.
func (w *waiter) patient() bool { return !w.deadline.IsZero() }

// hurry sets how long the next wait may last: if `on` is true, until the request has waited for w.least in all; otherwise until the
// deadline. A request without w.least never hurries.
func (w *waiter) hurry(on bool) {
	end := w.deadline
	if least := w.began.Add(w.least); on && w.least > 0 && least.Before(end) {
		end = least
	}
	if end.Equal(w.end) {
		return
	}
	w.end = end
	if w.timer != nil {
		w.timer.Reset(min(time.Until(end), w.session.svc.patience))
	}
}

// relax lets a request that hurried, and whose time is over, wait until its deadline. It returns false if the request did not hurry, or if
// the deadline has passed.
func (w *waiter) relax() bool {
	if !w.end.Before(w.deadline) || !time.Now().Before(w.deadline) {
		return false
	}
	w.late = false
	w.hurry(false)
	return true
}

// wait releases Service.mu and waits until the channel `changed` is closed or the session ends. It returns false if the deadline or the end
// of ctx comes first.
func (w *waiter) wait(changed <-chan struct{}) bool {
	if !w.patient() || w.late {
		return false
	}
	if w.timer == nil {
		w.timer = time.NewTimer(min(time.Until(w.end), w.session.svc.patience))
	}
	return w.sleep(changed, w.timer.C)
}

// outlast does the same as wait, but waits without a deadline. Call outlast only for a change that always happens soon.
func (w *waiter) outlast(changed <-chan struct{}) bool { return w.sleep(changed, nil) }

func (w *waiter) sleep(changed <-chan struct{}, timer <-chan time.Time) bool {
	svc := w.session.svc
	w.enter()
	svc.freeAndUnlock()
	defer func() {
		svc.mu.Lock()
		w.leave()
	}()
	for {
		select {
		case <-changed:
			return true
		case <-w.session.over:
			return true
		case <-timer:
			left := time.Until(w.end)
			if left <= 0 {
				w.late = true
				return false
			}
			w.timer.Reset(left)
			if w.long != nil {
				svc.mu.Lock()
				w.long(svc.patience)
				w.long = nil
				svc.mu.Unlock()
			}
		case <-w.ctx.Done():
			w.err = context.Cause(w.ctx)
			return false
		}
	}
}

// cause returns the context's error if the context ended the wait, and err otherwise.
func (w *waiter) cause(err error) error {
	if w.err != nil {
		return w.err
	}
	return err
}

func (w *waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}
