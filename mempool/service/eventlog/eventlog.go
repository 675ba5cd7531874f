package eventlog

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/internal/ration"
	"github.com/poolbridge/poolbridge/mempool"
)

// Capacity is the greatest number of events that an event log keeps.
const Capacity = 4096

// Entry is an event, with the users who may use the event's pool: they may see the event too.
type Entry struct {
	mempool.HistoryEvent
	// Maker is the user who made the pool, and Access is the pool's access list, which never changes. If the event concerns no pool, Access is
	// nil.
	Maker  uint32
	Access *mempool.Access
}

// Events keeps the newest events of an epoch, and counts all of them. Several goroutines may call its methods at the same time. A method
// locks nothing but the event log, so a caller may hold other locks; Log must be called without locks, because the log may block.
type Events struct {
	log   *slog.Logger
	calls [calls]struct{ made, failed atomic.Uint64 }

	mu       sync.Mutex
	ring     []Entry // the index of an event is (number - 1 - before) modulo Capacity; the ring grows to that length
	before   uint64  // the number of the last event of the services before this one, which are not here
	last     uint64  // number of the newest event
	unlogged []Entry
	watchers map[*watcher]struct{} // callers that wait for an event
	counts   counts
	rations  ration.Ration[cause]
	leftOut  map[cause]*leftOut // events that are left out now
	refused  map[string]*Gap    // refused requests, by the limit that they exceeded
}

// New makes an event log that writes its events to `log`. If `log` is nil, it logs nothing.
func New(log *slog.Logger) *Events {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Events{log: log, watchers: make(map[*watcher]struct{}), counts: newCounts(), leftOut: make(map[cause]*leftOut), refused: make(map[string]*Gap)}
}

// Continue makes the numbers of events go on after `last`. The event log has no event yet.
func (ev *Events) Continue(last uint64) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	ev.before, ev.last = last, last
}

// Note adds an event. The next call of Log logs the event: as a warning if [mempool.EventKind].Trouble returns true for its kind. The
// event's time is when the event log records it, so events are in the order of their times. If too many events of this kind come from one
// user, Note counts the event instead.
func (ev *Events) Note(one Entry) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	one.Count = max(one.Count, 1)
	key := cause{one.UID, one.Session != 0, one.Kind}
	if ev.rations.Take(key, time.Now()) {
		ev.record(one)
		return
	}
	out := ev.leftOut[key]
	if out == nil {
		out = new(leftOut)
		ev.leftOut[key] = out
		out.timer = time.AfterFunc(Rest, func() {
			ev.recordLeftOut(key)
			ev.Log()
		})
	}
	out.events++
	out.count += one.Count
	out.last = one
}

// cause is the key by which the event log limits events: no user can fill the event log and the log. The events of a user's sessions, and the
// events that concern no session, are limited by kind.
type cause struct {
	uid     uint32
	session bool
	kind    mempool.EventKind
}

// leftOut stands for events that came too fast. After Rest, the event log records one event for all of them.
type leftOut struct {
	events int
	count  int // the sum of their counts
	last   Entry
	timer  *time.Timer
}

// recordLeftOut records one event for all events that were left out for a cause.
func (ev *Events) recordLeftOut(key cause) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	out := ev.leftOut[key]
	if out == nil {
		return
	}
	delete(ev.leftOut, key)
	out.timer.Stop()
	one := out.last
	one.Count = out.count
	if out.events > 1 {
		one.Text = fmt.Sprintf("%s (the last of %d such events, which came too fast to note each)", Cut(one.Text, maxText/2), out.events)
	}
	ev.record(one)
}

// Close records and logs the events that were left out.
func (ev *Events) Close() {
	ev.mu.Lock()
	keys := make([]cause, 0, len(ev.leftOut))
	for key := range ev.leftOut {
		keys = append(keys, key)
	}
	ev.mu.Unlock()
	for _, key := range keys {
		ev.recordLeftOut(key)
	}
	ev.Log()
}

// record adds an event to the ring, counts it, and wakes the callers that wait for it. The caller holds ev.mu.
func (ev *Events) record(one Entry) {
	ev.last++
	one.Number, one.At = ev.last, time.Now()
	ev.unlogged = append(ev.unlogged, one)
	one.Text = Cut(one.Text, maxText)
	if len(ev.ring) < Capacity {
		ev.ring = append(ev.ring, one)
	} else {
		ev.ring[(ev.last-1-ev.before)%Capacity] = one
	}
	ev.counts.kinds[one.Kind] += uint64(one.Count)
	for w := range ev.watchers {
		if w.may(&one) {
			close(w.told)
			delete(ev.watchers, w)
		}
	}
}

// Log logs the events that were noted since the last call. The caller holds no lock, because the log may block.
func (ev *Events) Log() {
	ev.mu.Lock()
	unlogged := ev.unlogged
	ev.unlogged = nil
	ev.mu.Unlock()
	for i := range unlogged {
		unlogged[i].log(ev.log)
	}
}

// log writes the event's text to the log, with attributes that programs can search for.
func (e *Entry) log(to *slog.Logger) {
	level, ended := slog.LevelDebug, e.Kind == mempool.SessionEnded
	switch {
	case e.Kind.Trouble() || ended && e.Ending == mempool.SessionFailed:
		level = slog.LevelWarn
	case ended && e.Ending == mempool.SessionLost && e.Bytes > 0:
		level = slog.LevelInfo
	}
	ctx := context.Background()
	if !to.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.Uint64("event", e.Number), slog.String("kind", string(e.Kind))}
	if e.Session != 0 {
		attrs = append(attrs, slog.Uint64("session", e.Session), slog.Int("pid", int(e.PID)), slog.Uint64("uid", uint64(e.UID)))
	}
	if e.Pool != "" {
		attrs = append(attrs, slog.String("pool", e.Pool))
	}
	if e.Channel != "" {
		attrs = append(attrs, slog.String("channel", e.Channel))
	}
	if e.Count > 1 {
		attrs = append(attrs, slog.Int("count", e.Count))
	}
	to.LogAttrs(ctx, level, e.Text, attrs...)
}
