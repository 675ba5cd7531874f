package ledger

import (
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Timeline is what is known of the timeline of a session. A timeline is a page of words whose values only grow.
type Timeline struct {
	ledger  *Ledger
	File    uint64 // names the descriptor of its memory for a successor of this process; 0: there is none
	ID      uint64
	Session *Session // may be forgotten

	Sealed   bool
	Promised []uint64              // for each word, the greatest value of the fences that are known
	Dead     bool                  // no process writes the timeline any more, and all waits for its fences are over
	Unknown  bool                  // shared memory may have fences of this timeline that are not known
	Shown    map[*Session]struct{} // sessions that got a fence of this timeline, or may find one in shared memory

	references int // how many leases wait for fences of this timeline, plus how many members of channels write such fences
}

// timelines is the table of the timelines that a session may ask for.
type timelines struct {
	Timelines map[uint64]*Timeline

	mostTimelines int // the greatest length of Timelines
}

// AddTimeline makes the timeline of a session, which has none yet.
func (l *Ledger) AddTimeline(s *Session) *Timeline {
	l.Last.Timeline++
	t := &Timeline{ledger: l, ID: l.Last.Timeline, Session: s}
	l.putTimeline(t)
	l.Touch(t)
	return t
}

// putTimeline adds a timeline to the table and to its session.
func (all *timelines) putTimeline(t *Timeline) {
	t.Shown = make(map[*Session]struct{})
	t.Session.Timeline = t
	t.Session.holders++
	all.Timelines[t.ID] = t
}

// EndTimeline notes that no process writes the timeline any more, and that all waits for its fences are over. If nobody can ask for the
// timeline any more, EndTimeline removes it, and `gone` is true.
func (all *timelines) EndTimeline(t *Timeline) (gone bool) {
	t.Dead = true
	t.ledger.Touch(t)
	return all.removeUnreferenced(t)
}

// removeUnreferenced removes a timeline if no session can ask for it any more: it is dead, and no lease and no member refers to it.
func (all *timelines) removeUnreferenced(t *Timeline) bool {
	if !t.Dead || t.references > 0 || all.Timelines[t.ID] != t {
		return false
	}
	RemoveKey(&all.Timelines, &all.mostTimelines, t.ID)
	t.ledger.Touch(t)
	for s := range t.Shown {
		t.ledger.Touch(showing{t, s})
	}
	t.Session.dropHolder()
	return true
}

// addReferences notes that a lease of a session waits for fences.
func (all *timelines) addReferences(s *Session, ts Fences) {
	for _, f := range ts {
		t := all.Timelines[f.Timeline]
		t.references++
		t.Show(s)
	}
}

// Show notes that a session may ask for the timeline.
func (t *Timeline) Show(s *Session) {
	if _, shown := t.Shown[s]; !shown {
		t.Shown[s] = struct{}{}
		t.ledger.Touch(showing{t, s})
	}
}

// dropReference notes that a lease or a member does not refer to the timeline any more. It returns the timeline if it removes the timeline.
func (all *timelines) dropReference(t *Timeline) *Timeline {
	if t.references--; all.removeUnreferenced(t) {
		return t
	}
	return nil
}

// dropReferences undoes addReferences. It returns the timelines that it removes.
func (all *timelines) dropReferences(ts Fences) (gone []*Timeline) {
	for _, f := range ts {
		if t := all.dropReference(all.Timelines[f.Timeline]); t != nil {
			gone = append(gone, t)
		}
	}
	return gone
}

// Seal notes that nobody else can map the timeline for writing any more.
func (t *Timeline) Seal() {
	t.Sealed = true
	t.ledger.Touch(t)
}

// MaySeal says whether the session has a timeline.
//
// Errors: [mempool.ErrClosed], [mempool.ErrInvalid].
func (s *Session) MaySeal() error {
	if err := s.Alive(); err != nil {
		return err
	}
	if s.Timeline == nil {
		return typed.Errorf(mempool.ErrInvalid, "session %d has no timeline to seal; ask for it first", s.ID)
	}
	return nil
}

// SealedTimeline returns the session's timeline, or nil if it has none that is sealed.
func (s *Session) SealedTimeline() *Timeline {
	if s.Timeline != nil && s.Timeline.Sealed {
		return s.Timeline
	}
	return nil
}

// FindTimeline finds a timeline of which the session has a fence.
//
// Errors: [mempool.ErrClosed], [mempool.ErrStale].
func (all *timelines) FindTimeline(s *Session, id uint64) (*Timeline, error) {
	if err := s.Alive(); err != nil {
		return nil, err
	}
	t := Find(s, all.Timelines[id])
	if t == nil {
		return nil, typed.Errorf(mempool.ErrStale, "timeline %d is gone, and every fence of it is reached or will never be; or session %d was never sent "+
			"a fence of it", id, s.ID)
	}
	return t, nil
}

// PromiseFence checks a fence that the session names, and notes it in the session's timeline.
//
// Errors: [mempool.ErrInvalid].
func (s *Session) PromiseFence(f mempool.Fence) error {
	if err := f.Validate(); err != nil {
		return err
	}
	own := s.Timeline
	switch {
	case own == nil || own.ID != f.Timeline:
		return typed.Errorf(mempool.ErrInvalid, "timeline %d is not session %d's own: a session may name only fences of its own timeline", f.Timeline, s.ID)
	case !own.Sealed:
		return typed.Errorf(mempool.ErrInvalid, "timeline %d is not sealed yet", f.Timeline)
	}
	own.Promise(f.Word, f.Value)
	return nil
}

// PromiseFences does the same as PromiseFence for all fences that come with the release of a lease.
func (s *Session) PromiseFences(named []mempool.Fence) (ts Fences, err error) {
	if len(named) > mempool.MaxDone {
		return nil, typed.Errorf(mempool.ErrInvalid, "%d fences for one lease; at most %d", len(named), mempool.MaxDone)
	}
	for _, f := range named {
		if err := s.PromiseFence(f); err != nil {
			return nil, err
		}
		ts = ts.Add(f)
	}
	return ts, nil
}

// Promise notes a valid fence of the timeline, and returns it.
func (t *Timeline) Promise(word, value uint64) mempool.Fence {
	if missing := int(word) + 1 - len(t.Promised); missing > 0 {
		t.Promised = append(t.Promised, make([]uint64, missing)...)
	}
	if t.Promised[word] < value {
		t.Promised[word] = value
		t.ledger.Touch(t)
	}
	return mempool.Fence{Timeline: t.ID, Word: word, Value: value}
}

// Fences returns the greatest known fence of each word.
func (t *Timeline) Fences() (ts Fences) {
	for word, value := range t.Promised {
		if value > 0 {
			ts = append(ts, mempool.Fence{Timeline: t.ID, Word: uint64(word), Value: value})
		}
	}
	return ts
}

// VisibleTo says whether a session may ask for the timeline: a session sees its own timeline, and the timelines whose fences were sent to it
// or may be in memory that it shares.
func (t *Timeline) VisibleTo(s *Session) bool {
	_, shown := t.Shown[s]
	return shown || t.Session == s
}
