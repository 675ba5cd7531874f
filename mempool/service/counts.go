package service

import (
	"maps"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

// This file counts events and driver calls. If a request causes no event and no driver call, no code of this file runs for it, so counting
// does not make the request slower.

// reclaimBuckets are the upper bounds of the buckets of [mempool.Counts].Reclaims.
var reclaimBuckets = []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second, 10 * time.Second, time.Minute, 10 * time.Minute}

// eventCounts counts events. history.mu guards the counts.
type eventCounts struct {
	kinds    map[mempool.EventKind]uint64
	endings  map[mempool.SessionEnding]uint64
	reclaims mempool.Durations
}

func newEventCounts() eventCounts {
	c := eventCounts{kinds: make(map[mempool.EventKind]uint64), endings: make(map[mempool.SessionEnding]uint64)}
	for _, kind := range mempool.EventKinds() {
		c.kinds[kind] = 0
	}
	for _, how := range mempool.SessionEndings() {
		c.endings[how] = 0
	}
	c.reclaims.Buckets = make(map[time.Duration]uint64)
	for _, most := range reclaimBuckets {
		c.reclaims.Buckets[most] = 0
	}
	return c
}

// countEnding counts a session that has ended, even if the service notes no event for this end. The parameter `how` says how the session
// ended.
func (h *history) countEnding(how mempool.SessionEnding) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts.endings[how]++
}

// countReclaim counts how long the service held memory, a timeline or a slot for the process of an ended session.
func (h *history) countReclaim(took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &h.counts.reclaims
	c.Count++
	c.Sum += took
	for _, most := range reclaimBuckets {
		if took <= most {
			c.Buckets[most]++
		}
	}
}

// driverCall is a kind of call to the driver or the operating system.
type driverCall int

const (
	createArena driverCall = iota
	allocateBlock
	exportBlock
	freeBlock
	closeArena
	driverCalls
)

var driverCallNames = [driverCalls]string{"create", "allocate", "export", "free", "close"}

// driverCounts counts the calls of each kind, and their errors.
type driverCounts [driverCalls]struct{ calls, errors atomic.Uint64 }

// called counts a call with the result err, and returns err.
func (c *driverCounts) called(what driverCall, err error) error {
	c[what].calls.Add(1)
	if err != nil {
		c[what].errors.Add(1)
	}
	return err
}

// Counts returns the numbers of events and of driver calls since the service started, and the number of requests that wait now.
func (s *Service) Counts() mempool.Counts {
	c := mempool.Counts{Waiting: make(map[string]int), DriverCalls: make(map[string]uint64), DriverErrors: make(map[string]uint64)}
	h := &s.history
	h.mu.Lock()
	c.Events, c.Endings, c.Reclaims = maps.Clone(h.counts.kinds), maps.Clone(h.counts.endings), h.counts.reclaims
	c.Reclaims.Buckets = maps.Clone(c.Reclaims.Buckets)
	h.mu.Unlock()
	for i, name := range driverCallNames {
		c.DriverCalls[name], c.DriverErrors[name] = s.driver[i].calls.Load(), s.driver[i].errors.Load()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, what := range []string{forRoom, forBuffer, forName, forPool, forChannel} {
		c.Waiting[what] = s.waiting[what]
	}
	return c
}
