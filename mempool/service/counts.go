package service

import (
	"maps"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

// This file counts what happened. A request that is served at once runs none of it.

// reclaimBuckets are the upper bounds of the buckets of [mempool.Counts].Reclaims.
var reclaimBuckets = []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second, 10 * time.Second, time.Minute, 10 * time.Minute}

// eventCounts counts events. It is guarded by history.mu.
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

// countEnding counts a session by how it ended, also where no event is noted.
func (h *history) countEnding(how mempool.SessionEnding) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts.endings[how]++
}

// countReclaim counts how long something was held for the process of a session that ended.
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

// driverCall is a sort of call to the driver or the system.
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

// driverCounts counts calls of each sort.
type driverCounts [driverCalls]struct{ calls, errors atomic.Uint64 }

// called counts a call and returns its error.
func (c *driverCounts) called(what driverCall, err error) error {
	c[what].calls.Add(1)
	if err != nil {
		c[what].errors.Add(1)
	}
	return err
}

// Counts says what happened so far.
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
