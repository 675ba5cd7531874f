package service

import (
	"context"
	"time"
)

// waiter bounds a wait of a session by a context and a time limit. Its zero limit means not to wait at all.
type waiter struct {
	ctx      context.Context
	session  *Session
	deadline time.Time
	timer    *time.Timer
	late     bool // the limit has passed
	// long is called once when it waits for long, with Service.mu held; nil: nobody is told.
	long func(waited time.Duration)
	err  error // of the context
}

func (s *Session) newWaiter(ctx context.Context, limit time.Duration) waiter {
	w := waiter{ctx: ctx, session: s}
	if limit > 0 {
		w.deadline = time.Now().Add(limit)
	}
	return w
}

// patient says whether the session waits at all.
func (w *waiter) patient() bool { return !w.deadline.IsZero() }

// wait releases Service.mu until changed is closed or the session ends, and reports false if the limit or the context
// ended first.
func (w *waiter) wait(changed <-chan struct{}) bool {
	if !w.patient() || w.late {
		return false
	}
	w.session.svc.unlock()
	defer w.session.svc.mu.Lock()
	return w.sleep(changed)
}

func (w *waiter) sleep(changed <-chan struct{}) bool {
	svc := w.session.svc
	if w.timer == nil {
		w.timer = time.NewTimer(min(time.Until(w.deadline), svc.patience))
	}
	for {
		select {
		case <-changed:
			return true
		case <-w.session.over:
			return true
		case <-w.timer.C:
			left := time.Until(w.deadline)
			if left <= 0 {
				w.late = true
				return false
			}
			w.timer.Reset(left)
			if w.long != nil {
				svc.mu.Lock()
				w.long(svc.patience)
				svc.mu.Unlock()
			}
		case <-w.ctx.Done():
			w.err = context.Cause(w.ctx)
			return false
		}
	}
}

// outlast is wait after the limit has passed: for what happens soon, without anybody's doing.
func (w *waiter) outlast(changed <-chan struct{}) bool {
	s := w.session
	s.svc.unlock()
	defer s.svc.mu.Lock()
	select {
	case <-changed:
		return true
	case <-s.over:
		return true
	case <-w.ctx.Done():
		w.err = context.Cause(w.ctx)
		return false
	}
}

// cause is the context's error if that ended the wait, err otherwise.
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
