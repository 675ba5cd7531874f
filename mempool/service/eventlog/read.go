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
func (j *Events) Last() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.last
}

// Read returns the oldest events that have a number greater than `after` and for which the function `may` returns true. The oldest event
// comes first. Read returns at most `most` events. It calls `may` with the event log locked, so `may` must not call the event log.
func (j *Events) Read(after uint64, most int, may func(*Entry) bool) mempool.EventPage {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.page(after, most, may)
}

// page does the same as Read. The caller holds j.mu.
func (j *Events) page(after uint64, most int, may func(*Entry) bool) (page mempool.EventPage) {
	if forgotten := j.last - uint64(len(j.ring)); after < forgotten {
		page.Lost, after = forgotten-after, forgotten
	}
	for page.Next = min(after, j.last); page.Next < j.last && len(page.Events) < most; page.Next++ {
		if one := &j.ring[(page.Next-j.before)%Capacity]; may(one) {
			page.Events = append(page.Events, one.HistoryEvent)
		}
	}
	return page
}

// watch does the same as Read. If Read would return no event, watch also returns a watcher for the next event.
func (j *Events) watch(after uint64, most int, may func(*Entry) bool) (mempool.EventPage, *watcher) {
	j.mu.Lock()
	defer j.mu.Unlock()
	page := j.page(after, most, may)
	if len(page.Events) > 0 {
		return page, nil
	}
	w := &watcher{may: may, told: make(chan struct{})}
	j.watchers[w] = struct{}{}
	return page, w
}

func (j *Events) unwatch(w *watcher) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.watchers, w)
}

// Await does the same as Read. But if Read would return no event, Await waits for the next event. It stops waiting when it receives from
// the channel `late` or from the channel `ended`. The result `over` is true if Await has received from `ended`.
//
// Errors: the context's error.
func (j *Events) Await(ctx context.Context, after uint64, most int, may func(*Entry) bool, late <-chan time.Time,
	ended <-chan struct{}) (page mempool.EventPage, over bool, err error) {
	page, w := j.watch(after, most, may)
	if w == nil {
		return page, false, nil
	}
	defer j.unwatch(w)
	select {
	case <-w.told: // the watcher's event is the first event that the caller may see
		lost := page.Lost
		page = j.Read(page.Next, most, may)
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
