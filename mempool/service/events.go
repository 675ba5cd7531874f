package service

import (
	"context"
	"time"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/eventlog"
)

// tells says whether the session may see an event.
func (v View) tells(e *eventlog.Entry) bool {
	switch {
	case v.session.rec.Owner:
		return true
	case e.Access != nil:
		return v.session.rec.MaySee(e.Maker, e.Access)
	}
	return e.Session != 0 && e.UID == v.session.rec.Peer.UID
}

// Events returns the oldest events that have a number greater than `after`, at most `most` events. The oldest event comes first. If there
// is no such event, Events waits for one until the context ends. For the next call, the caller passes page.Next as the argument `after`. If
// `after` is 0, Events begins with the oldest event that the history keeps. The history keeps the newest 4096 events of the epoch.
//
// Errors: [mempool.ErrClosed] if the service is closed and has no event with a number greater than `after`, the context's error.
func (s *Service) Events(ctx context.Context, after uint64, most int) (mempool.EventPage, error) {
	page, over, err := s.eventLog.Await(ctx, after, most, func(*eventlog.Entry) bool { return true }, nil, s.done)
	if over {
		err = errShutdown
	}
	return page, err
}

// LastEvent returns the number of the newest event, or 0 if there is no event yet.
func (s *Service) LastEvent() uint64 { return s.eventLog.Last() }

// Events does the same as [Service.Events], but returns only events that the session may see. A session of the user that the service runs
// as may see all events. Every other session may see the events of its own user's sessions, and the events of pools that its user may use
// or has made. Events waits for an event, but not longer than the time `wait`. After that time, it returns a page without events.
//
// Errors: [mempool.ErrInvalid] if `after` is greater than the number of the newest event, [mempool.ErrLimit] if [MaxEventWaits] calls of
// the session wait already, [mempool.ErrClosed], the context's error.
func (v View) Events(ctx context.Context, after uint64, most int, wait time.Duration) (mempool.EventPage, error) {
	s := v.session
	if last := s.svc.LastEvent(); after > last {
		return mempool.EventPage{}, typed.Errorf(mempool.ErrInvalid, "there is no event %d yet, the newest is %d: events are numbered anew when the service starts",
			after, last)
	}
	select {
	case <-s.over:
		return mempool.EventPage{}, s.rec.HasEnded()
	default:
	}
	if wait == 0 {
		return s.svc.eventLog.Read(after, most, v.tells), nil
	}
	if s.eventWaits.Add(1) > MaxEventWaits {
		s.eventWaits.Add(-1)
		return mempool.EventPage{}, typed.Errorf(mempool.ErrLimit, "%d requests of session %d wait for events, which is the limit: wait for an answer, or cancel one",
			MaxEventWaits, s.rec.ID)
	}
	defer s.eventWaits.Add(-1)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	page, over, err := s.svc.eventLog.Await(ctx, after, most, v.tells, timer.C, s.over)
	if over {
		err = s.rec.HasEnded()
	}
	return page, err
}

// MaxEventWaits is how many calls of [View.Events] of one session may wait at the same time. There is a limit because the service must
// check each new event for every call that waits.
const MaxEventWaits = 4
