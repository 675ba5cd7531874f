package service

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// This file keeps the newest events of an epoch, so that programs can ask for them later.

// maxHistory is the greatest number of events that the history keeps.
const maxHistory = 4096

// history is a ring of events. A goroutine that has locked history.mu must not lock another mutex: some goroutines lock Service.mu before
// history.mu, and others lock only history.mu.
type history struct {
	mu   sync.Mutex
	ring []happening // the index of an event is (number - 1) modulo maxHistory; the ring grows to that length
	last uint64      // number of the newest event

	watchers map[*watcher]struct{} // callers that wait for an event

	counts eventCounts
}

// watcher stands for a call that waits for the next event that its caller may see. There may be many watchers, so an event wakes only the
// watchers whose function `may` returns true for the event.
type watcher struct {
	may  func(*happening) bool
	told chan struct{} // closed when there is an event that the caller may see
}

// happening is an event, with the access list of the event's pool: the users of the pool may see the event too.
type happening struct {
	mempool.HistoryEvent
	pool *poolAccess // nil: the event concerns no pool
}

// poolAccess says which users may use a pool, and which user made the pool. Each event of the pool has a pointer to the pool's poolAccess,
// and keeps this pointer after the pool is destroyed.
type poolAccess struct {
	uid    uint32         // the user who made the pool
	access mempool.Access // the users and groups that may use the pool, sorted; never empty
}

// note adds an event to the history, and the event is logged when the lock is released. If [mempool.EventKind].Trouble returns true for the
// event's kind, it is logged as a warning. If the event has no time, note sets its time to now. The parameter `pool` is the pool that the
// event concerns, or nil. If too many events of this kind come from one user, note counts the event instead. The caller holds s.mu.
func (s *Service) note(e mempool.HistoryEvent, pool *Pool) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	e.Count = max(e.Count, 1)
	one := happening{HistoryEvent: e}
	if pool != nil {
		one.Pool, one.pool = pool.info.Name, pool.poolAccess
	}
	key := cause{one.UID, one.Session != 0, one.Kind}
	if s.rations.Take(key, time.Now()) {
		s.record(one)
		return
	}
	out := s.leftOut[key]
	if out == nil {
		out = new(leftOut)
		s.leftOut[key] = out
		out.timer = time.AfterFunc(gapRest, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.noteLeftOut(key)
		})
	}
	out.events++
	out.count += one.Count
	out.last = one
}

// record adds an event to the history, and has it logged when the lock is released. The caller holds s.mu.
func (s *Service) record(one happening) {
	one.Number = s.history.add(one)
	s.mu.noted = append(s.mu.noted, one)
}

// cause is the key by which the service limits events: no user can fill the history and the log. The events of a user's sessions, and the
// events that concern no session, are limited by kind.
type cause struct {
	uid     uint32
	session bool
	kind    mempool.EventKind
}

// leftOut stands for events that came too fast. After gapRest, the service notes one event for all of them.
type leftOut struct {
	events int
	count  int // the sum of their counts
	last   happening
	timer  *time.Timer
}

// noteLeftOut notes one event for all events that were left out for a cause. The caller holds s.mu.
func (s *Service) noteLeftOut(key cause) {
	out := s.leftOut[key]
	if out == nil {
		return
	}
	delete(s.leftOut, key)
	out.timer.Stop()
	one := out.last
	one.Count = out.count
	if out.events > 1 {
		one.Text = fmt.Sprintf("%s (the last of %d such events, which came too fast to note each)", cut(one.Text, maxEventText/2), out.events)
	}
	s.record(one)
}

// add adds an event and returns its number.
func (h *history) add(one happening) uint64 {
	one.Text = cut(one.Text, maxEventText)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	one.Number = h.last
	if len(h.ring) < maxHistory {
		h.ring = append(h.ring, one)
	} else {
		h.ring[(h.last-1)%maxHistory] = one
	}
	h.counts.kinds[one.Kind] += uint64(one.Count)
	for w := range h.watchers {
		if w.may(&one) {
			close(w.told)
			delete(h.watchers, w)
		}
	}
	return one.Number
}

// log writes the event's text to the log, with attributes that programs can search for.
func (h *happening) log(to *slog.Logger) {
	level := slog.LevelDebug
	if h.Kind.Trouble() || h.Ending == mempool.SessionFailed && h.Kind == mempool.SessionEnded {
		level = slog.LevelWarn
	}
	ctx := context.Background()
	if !to.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.Uint64("event", h.Number), slog.String("kind", string(h.Kind))}
	if h.Session != 0 {
		attrs = append(attrs, slog.Uint64("session", h.Session), slog.Int("pid", int(h.PID)), slog.Uint64("uid", uint64(h.UID)))
	}
	if h.Pool != "" {
		attrs = append(attrs, slog.String("pool", h.Pool))
	}
	if h.Channel != "" {
		attrs = append(attrs, slog.String("channel", h.Channel))
	}
	if h.Count > 1 {
		attrs = append(attrs, slog.Int("count", h.Count))
	}
	to.LogAttrs(ctx, level, h.Text, attrs...)
}

// about makes an event about the session.
func (s *Session) about(kind mempool.EventKind, format string, args ...any) mempool.HistoryEvent {
	return mempool.HistoryEvent{Kind: kind, Session: s.id, PID: s.peer.PID, UID: s.peer.UID, Program: s.program, Text: fmt.Sprintf(format, args...)}
}

// who returns the session's name for the text of an event. The caller holds Service.mu.
func (s *Session) who() string {
	if s.program == "" {
		return fmt.Sprintf("session %d (pid %d, user %d)", s.id, s.peer.PID, s.peer.UID)
	}
	return fmt.Sprintf("session %d (%q, pid %d, user %d)", s.id, s.program, s.peer.PID, s.peer.UID)
}

// tells says whether the session may see an event.
func (s *Session) tells(h *happening) bool { return h.visibleTo(s) }

// read returns the oldest events that have a number greater than `after` and for which the function `may` returns true. The oldest event
// comes first. read returns at most `most` events.
func (h *history) read(after uint64, most int, may func(*happening) bool) mempool.EventPage {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.page(after, most, may)
}

// page does the same as read. The caller holds h.mu.
func (h *history) page(after uint64, most int, may func(*happening) bool) (page mempool.EventPage) {
	if forgotten := h.last - uint64(len(h.ring)); after < forgotten {
		page.Lost, after = forgotten-after, forgotten
	}
	for page.Next = min(after, h.last); page.Next < h.last && len(page.Events) < most; page.Next++ {
		if one := &h.ring[page.Next%maxHistory]; may(one) {
			page.Events = append(page.Events, one.HistoryEvent)
		}
	}
	return page
}

// watch does the same as read. If read would return no event, watch also returns a watcher for the next event.
func (h *history) watch(after uint64, most int, may func(*happening) bool) (mempool.EventPage, *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	page := h.page(after, most, may)
	if len(page.Events) > 0 {
		return page, nil
	}
	w := &watcher{may: may, told: make(chan struct{})}
	h.watchers[w] = struct{}{}
	return page, w
}

func (h *history) unwatch(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

// await does the same as read. But if read would return no event, await waits for the next event. It stops waiting when it receives from
// the channel `late` or from the channel `ended`. The result `over` is true if await has received from `ended`.
//
// Errors: the context's error.
func (h *history) await(ctx context.Context, after uint64, most int, may func(*happening) bool, late <-chan time.Time,
	ended <-chan struct{}) (page mempool.EventPage, over bool, err error) {
	page, w := h.watch(after, most, may)
	if w == nil {
		return page, false, nil
	}
	defer h.unwatch(w)
	select {
	case <-w.told: // the watcher's event is the first event that the caller may see
		lost := page.Lost
		page = h.read(page.Next, most, may)
		page.Lost += lost
		return page, false, nil
	case <-late:
		return page, false, nil
	case <-ended:
		return page, true, nil
	case <-ctx.Done():
		return page, false, context.Cause(ctx)
	}
}

// Events returns the oldest events that have a number greater than `after`, at most `most` events. The oldest event comes first. If there
// is no such event, Events waits for one until the context ends. For the next call, the caller passes page.Next as the argument `after`. If
// `after` is 0, Events begins with the oldest event that the history keeps. The history keeps the newest 4096 events of the epoch.
//
// Errors: [mempool.ErrClosed] if the service is closed and has no event with a number greater than `after`, the context's error.
func (s *Service) Events(ctx context.Context, after uint64, most int) (mempool.EventPage, error) {
	page, over, err := s.history.await(ctx, after, most, func(*happening) bool { return true }, nil, s.done)
	if over {
		err = errShutdown
	}
	return page, err
}

// LastEvent returns the number of the newest event, or 0 if there is no event yet.
func (s *Service) LastEvent() uint64 {
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	return s.history.last
}

// Events does the same as [Service.Events], but returns only events that the session may see. A session of the user that the service runs
// as may see all events. Every other session may see the events of its own user's sessions, and the events of pools that its user may use
// or has made. Events waits for an event, but not longer than the time `wait`. After that time, it returns a page without events.
//
// Errors: [mempool.ErrInvalid] if `after` is greater than the number of the newest event, [mempool.ErrLimit] if [MaxEventWaits] calls of
// the session wait already, [mempool.ErrClosed], the context's error.
func (s *Session) Events(ctx context.Context, after uint64, most int, wait time.Duration) (mempool.EventPage, error) {
	if last := s.svc.LastEvent(); after > last {
		return mempool.EventPage{}, situation.Of(mempool.ErrInvalid, "there is no event %d yet, the newest is %d: events are numbered anew when the service starts",
			after, last)
	}
	select {
	case <-s.over:
		return mempool.EventPage{}, s.hasEnded()
	default:
	}
	if wait == 0 {
		return s.svc.history.read(after, most, s.tells), nil
	}
	if s.eventWaits.Add(1) > MaxEventWaits {
		s.eventWaits.Add(-1)
		return mempool.EventPage{}, situation.Of(mempool.ErrLimit, "%d requests of session %d wait for events, which is the limit: wait for an answer, or cancel one",
			MaxEventWaits, s.id)
	}
	defer s.eventWaits.Add(-1)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	page, over, err := s.svc.history.await(ctx, after, most, s.tells, timer.C, s.over)
	if over {
		err = s.hasEnded()
	}
	return page, err
}

// MaxEventWaits is how many calls of [Session.Events] of one session may wait at the same time. There is a limit because the service must
// check each new event for every call that waits.
const MaxEventWaits = 4

// gap limits how often the service notes a frequent event. Service.mu guards gaps.
type gap struct {
	told  time.Time // when the event was last noted
	count int       // how often the event happened since then
}

// gapRest is the shortest time between two notes of a frequent event.
const gapRest = 10 * time.Second

// tell counts one event. If the result `now` is true, the caller must note the event immediately; the result `count` is then the number of
// events since the last note. If the result `now` is false, the caller must not note the event.
func (g *gap) tell() (count int, now bool) {
	g.count++
	if !g.told.IsZero() && time.Since(g.told) < gapRest {
		return 0, false
	}
	count = g.count
	*g = gap{told: time.Now()}
	return count, true
}
