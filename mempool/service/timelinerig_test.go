package service

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// worker is a session of another process, with the notices that the session got. The session understands timelines.
type worker struct {
	*Session
	page    *mempool.Page
	clock   *mempool.Clock
	id      uint64   // id of the worker's timeline
	next    uint64   // value of the worker's last fence; all its fences are in word 7
	notices []Notice // guarded by Service.mu
	others  []MemberCame
}

const workerWord = 7

// letGoBy is the number that the service adds to the timeline words of a process that is gone.
const letGoBy = mempool.MaxFenceValue + 1

func hire(t testing.TB, svc *Service) *worker {
	t.Helper()
	return hireWith(t, svc, func(mempool.Export) {})
}

// hireWith makes a worker, and calls first with the worker's timeline before the timeline is sealed.
func hireWith(t testing.TB, svc *Service, first func(mempool.Export)) *worker {
	t.Helper()
	w := new(worker)
	s, err := svc.OpenSession(mempool.Self(), "", func(n Notice) { w.notices = append(w.notices, n) })
	require.NoError(t, err)
	w.Session = s
	id, x, err := s.Timeline()
	require.NoError(t, err)
	w.id = id
	w.page, err = mempool.MapPage(x, true)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, w.page.Close()) })
	w.clock = mempool.NewClock(id, w.page)
	first(x)
	require.NoError(t, s.SealTimeline())
	return w
}

// fence returns the worker's next fence, which is not reached yet.
func (w *worker) fence() mempool.Fence {
	w.next++
	return mempool.Fence{Timeline: w.id, Word: workerWord, Value: w.next}
}

// reach reaches every fence up to t.
func (w *worker) reach(t mempool.Fence) {
	t.Timeline = w.id
	if err := w.clock.Reach(t); err != nil {
		panic(err)
	}
}

// told removes and returns the notices of one type.
func told[N Notice](w *worker) (found []N) {
	w.svc.mu.Lock()
	defer w.svc.mu.Unlock()
	w.notices = slices.DeleteFunc(w.notices, func(n Notice) bool {
		f, ok := n.(N)
		if ok {
			found = append(found, f)
		}
		return ok
	})
	return found
}

func (w *worker) publish(t testing.TB, l Lease, name string, ready *mempool.Fence) {
	t.Helper()
	require.NoError(t, l.Publish(mempool.Publication{Name: name, Keep: true, Completion: mempool.Completion{Ready: ready}}))
}

func (w *worker) get(t testing.TB, name string, write bool) Lease {
	t.Helper()
	l, err := w.getLease(context.Background(), name, write, 0)
	require.NoError(t, err)
	return l
}

// die ends the worker's connection and its process.
func (w *worker) die() {
	gone := make(chan struct{})
	reclaimed := w.End(mempool.SessionLeft, "", gone)
	close(gone)
	<-reclaimed
}
