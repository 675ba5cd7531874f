package eventlog

import (
	"context"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

// watcher stands for a call that waits for the next event that its caller may see. There may be many watchers, so an event wakes only the
// watchers whose function `may` returns true for the event.
type watcher struct {
	may  func(*Entry) bool
	told chan struct{} // closed when there is an event that the caller may see
}

// Last returns the number of the newest event, or 0 if there is no event yet.
func (ev *Events) Last() uint64 {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	return ev.last
}

// Read returns the oldest events that have a number greater than `after` and for which the function `may` returns true. The oldest event
// comes first. Read returns at most `most` events. It calls `may` with the event log locked, so `may` must not call the event log.
func (ev *Events) Read(after uint64, most int, may func(*Entry) bool) mempool.EventPage {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	return ev.page(after, most, may)
}

// page does the same as Read. The caller holds ev.mu.
func (ev *Events) page(after uint64, most int, may func(*Entry) bool) (page mempool.EventPage) {
	if forgotten := ev.last - uint64(len(ev.ring)); after < forgotten {
		page.Lost, after = forgotten-after, forgotten
	}
	for page.Next = min(after, ev.last); page.Next < ev.last && len(page.Events) < most; page.Next++ {
		if one := &ev.ring[(page.Next-ev.before)%Capacity]; may(one) {
			page.Events = append(page.Events, one.HistoryEvent)
		}
	}
	return page
}

// watch does the same as Read. If Read would return no event, watch also returns a watcher for the next event.
func (ev *Events) watch(after uint64, most int, may func(*Entry) bool) (mempool.EventPage, *watcher) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	page := ev.page(after, most, may)
	if len(page.Events) > 0 {
		return page, nil
	}
	w := &watcher{may: may, told: make(chan struct{})}
	ev.watchers[w] = struct{}{}
	return page, w
}

func (ev *Events) unwatch(w *watcher) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	delete(ev.watchers, w)
}

// Await does the same as Read. But if Read would return no event, Await waits for the next event. It stops waiting when it receives from
// the channel `late` or from the channel `ended`. The result `over` is true if Await has received from `ended`.
//
// Errors: the context's error.
func (ev *Events) Await(ctx context.Context, after uint64, most int, may func(*Entry) bool, late <-chan time.Time,
	ended <-chan struct{}) (page mempool.EventPage, over bool, err error) {
	page, w := ev.watch(after, most, may)
	if w == nil {
		return page, false, nil
	}
	defer ev.unwatch(w)
	select {
	case <-w.told: // the watcher's event is the first event that the caller may see
		lost := page.Lost
		page = ev.Read(page.Next, most, may)
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
