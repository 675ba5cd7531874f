package eventlog

import (
	"maps"

	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

// This file counts events and driver calls. If a request causes no event and no driver call, no code of this file runs for it, so counting
// does not make the request slower.

// reclaimBuckets are the upper bounds of the buckets of [mempool.Counts].Reclaims.
var reclaimBuckets = []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second, 10 * time.Second, time.Minute, 10 * time.Minute}

// counts counts events. Events.mu guards the counts.
type counts struct {
	kinds    map[mempool.EventKind]uint64
	endings  map[mempool.SessionEnding]uint64
	reclaims mempool.Durations
}

func newCounts() counts {
	c := counts{kinds: make(map[mempool.EventKind]uint64), endings: make(map[mempool.SessionEnding]uint64)}
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

// CountEnding counts a session that has ended, even if no event is noted for this end. The parameter `how` says how the session ended.
func (ev *Events) CountEnding(how mempool.SessionEnding) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	ev.counts.endings[how]++
}

// CountReclaim counts how long the service held memory, a timeline or a seat for the process of an ended session.
func (ev *Events) CountReclaim(took time.Duration) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	c := &ev.counts.reclaims
	c.Count++
	c.Sum += took
	for _, most := range reclaimBuckets {
		if took <= most {
			c.Buckets[most]++
		}
	}
}

// Call is a kind of call to the driver or the operating system.
type Call int

// These are the kinds of calls.
const (
	CreateBacking Call = iota
	AllocateBlock
	ExportBlock
	FreeBlock
	CloseBacking
	calls
)

var callNames = [calls]string{"create", "allocate", "export", "free", "close"}

// Called counts a call with the result err, and returns err.
func (ev *Events) Called(what Call, err error) error {
	ev.calls[what].made.Add(1)
	if err != nil {
		ev.calls[what].failed.Add(1)
	}
	return err
}

// Counts returns the numbers of events and of driver calls so far.
func (ev *Events) Counts() mempool.Counts {
	c := mempool.Counts{DriverCalls: make(map[string]uint64), DriverErrors: make(map[string]uint64)}
	ev.mu.Lock()
	c.Events, c.Endings, c.Reclaims = maps.Clone(ev.counts.kinds), maps.Clone(ev.counts.endings), ev.counts.reclaims
	c.Reclaims.Buckets = maps.Clone(c.Reclaims.Buckets)
	ev.mu.Unlock()
	for i, name := range callNames {
		c.DriverCalls[name], c.DriverErrors[name] = ev.calls[i].made.Load(), ev.calls[i].failed.Load()
	}
	return c
}
