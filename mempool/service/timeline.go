package service

import (
	"errors"
	"maps"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// timeline has what the service knows about the timeline of a session. A timeline is a page of words whose values only grow. Service.mu
// guards every field that can change.
type timeline struct {
	id      uint64
	session *Session
	page    *mempool.Page
	file    *os.File

	sealed   bool
	promised []uint64                     // for each word, the greatest value of the fences that the service knows
	dead     bool                         // no process writes the timeline any more, and all waits for its fences are over
	unknown  bool                         // shared memory may have fences of this timeline that the service does not know
	leases   int                          // how many leases wait for fences of this timeline, plus how many channel members write such fences
	shown    map[*ledger.Session]struct{} // sessions that got a fence of this timeline, or may find one in shared memory
}

// Forget tells a session that the service will not send the session fences of some timelines any more. The session's client may then unmap
// the timelines' pages.
type Forget struct{ Timelines []uint64 }

// Failed tells a session that buffers which it has leased will never be complete: their writer died, or said that the content failed.
type Failed struct{ Buffers []uint64 }

func (Forget) notice() {}
func (Failed) notice() {}

// timelinesWork returns an error if this machine cannot make timelines. Timelines need F_SEAL_FUTURE_WRITE, which exists since Linux 5.1.
var timelinesWork = sync.OnceValue(func() error {
	page, file, err := mempool.NewPage()
	if err != nil {
		return err
	}
	err = mempool.SealPage(file)
	if errors.Is(err, unix.EINVAL) {
		err = situation.Of(mempool.ErrUnavailable, "the kernel is older than 5.1 and has no F_SEAL_FUTURE_WRITE")
	}
	return errors.Join(err, page.Close(), file.Close())
})

// ProbeTimelines returns an error if sessions cannot have timelines on this machine.
//
// Errors: [mempool.ErrUnavailable], which names what is missing.
func ProbeTimelines() error { return timelinesWork() }

// Timeline makes the session's timeline on the first call, and returns the timeline's id and file. The client maps the file for writing,
// and the caller then calls [Session.SealTimeline]. The service closes the file.
//
// Errors: [mempool.ErrUnavailable], [mempool.ErrOutOfMemory], [mempool.ErrClosed].
func (s *Session) Timeline() (uint64, mempool.Export, error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	if err := s.rec.Alive(); err != nil {
		return 0, mempool.Export{}, err
	}
	if s.timeline == nil {
		if err := timelinesWork(); err != nil {
			return 0, mempool.Export{}, err
		}
		page, file, err := mempool.NewPage()
		if err != nil {
			return 0, mempool.Export{}, err
		}
		svc.ledger.Last.Timeline++
		svc.ledger.Timelines[svc.ledger.Last.Timeline] = s.rec
		t := &timeline{id: svc.ledger.Last.Timeline, session: s, page: page, file: file, shown: make(map[*ledger.Session]struct{})}
		svc.timelines[t.id] = t
		s.timeline = t
	}
	return s.timeline.id, mempool.Export{Files: []*os.File{s.timeline.file}}, nil
}

// SealTimeline seals the file of the session's timeline, which the client has mapped: from then on, no other process can map the file for
// writing, and the session's requests may contain fences of the timeline.
//
// Errors: [mempool.ErrInvalid] if there is no timeline, or if the client has sealed the file in another way; [mempool.ErrClosed].
func (s *Session) SealTimeline() error {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	if err := s.rec.Alive(); err != nil {
		return err
	}
	t := s.timeline
	switch {
	case t == nil:
		return situation.Of(mempool.ErrInvalid, "session %d has no timeline to seal; ask for it first", s.rec.ID)
	case t.sealed:
		return nil
	}
	if err := mempool.SealPage(t.file); err != nil {
		return err
	}
	t.sealed = true
	return nil
}

// FindTimeline returns the file of another session's timeline, for reading.
//
// Errors: [mempool.ErrStale] for a timeline that is gone, or of which the service never sent the session a fence, [mempool.ErrClosed].
func (s *Session) FindTimeline(id uint64) (mempool.Export, error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	if err := s.rec.Alive(); err != nil {
		return mempool.Export{}, err
	}
	t := ledger.Find(s.rec, svc.timelines[id])
	if t == nil {
		return mempool.Export{}, situation.Of(mempool.ErrStale, "timeline %d is gone, and every fence of it is reached or will never be; or session %d was never sent "+
			"a fence of it", id, s.rec.ID)
	}
	return mempool.Export{Files: []*os.File{t.file}}, nil
}

// VisibleTo says whether a session may ask for the timeline: a session sees its own timeline, and the timelines whose fences the service sent
// to it or may send to it.
func (t *timeline) VisibleTo(s *ledger.Session) bool {
	_, shown := t.shown[s]
	return shown || t.session.rec == s
}

// fence checks a fence that the session names, and notes the fence in the session's timeline. The caller holds Service.mu.
func (s *Session) fence(t mempool.Fence) (mempool.Fence, error) {
	if err := t.Validate(); err != nil {
		return mempool.Fence{}, err
	}
	own := s.timeline
	switch {
	case own == nil || own.id != t.Timeline:
		return mempool.Fence{}, situation.Of(mempool.ErrInvalid, "timeline %d is not session %d's own: a session may name only fences of its own timeline", t.Timeline, s.rec.ID)
	case !own.sealed:
		return mempool.Fence{}, situation.Of(mempool.ErrInvalid, "timeline %d is not sealed yet", t.Timeline)
	}
	return own.promise(t.Word, t.Value), nil
}

// promise notes a valid fence of the timeline. The caller holds Service.mu.
func (t *timeline) promise(word, value uint64) mempool.Fence {
	if missing := int(word) + 1 - len(t.promised); missing > 0 {
		t.promised = append(t.promised, make([]uint64, missing)...)
	}
	t.promised[word] = max(t.promised[word], value)
	return mempool.Fence{Timeline: t.id, Word: word, Value: value}
}

// outstanding returns the fences of the timeline that the service knows and that are not reached yet. The caller holds Service.mu.
func (t *timeline) outstanding() (ts ledger.Fences) {
	if t == nil || t.dead {
		return nil
	}
	for word, value := range t.promised {
		if value > 0 {
			ts = append(ts, mempool.Fence{Timeline: t.id, Word: uint64(word), Value: value})
		}
	}
	return t.session.svc.pending(ts)
}

// fences checks and notes fences that the session names. The caller holds Service.mu.
func (s *Session) fences(named []mempool.Fence) (ledger.Fences, error) {
	if len(named) > mempool.MaxDone {
		return nil, situation.Of(mempool.ErrInvalid, "%d fences for one lease; at most %d", len(named), mempool.MaxDone)
	}
	var ts ledger.Fences
	for _, n := range named {
		t, err := s.fence(n)
		if err != nil {
			return nil, err
		}
		ts = ts.Add(t)
	}
	return s.svc.pending(ts), nil
}

// owed says whether some fence of the timeline is not reached yet. The caller holds Service.mu.
func (t *timeline) owed() bool {
	if t == nil || t.dead {
		return false
	}
	for word, value := range t.promised {
		if value > 0 && !t.page.Passed(uint64(word), value) {
			return true
		}
	}
	return false
}

// beginWaitLocked notes that a lease of a session waits for fences. The caller holds s.mu.
func (s *Service) beginWaitLocked(of *ledger.Session, ts ledger.Fences) {
	for _, t := range ts {
		own := s.timelines[t.Timeline]
		own.leases++
		own.shown[of] = struct{}{}
	}
}

// endWaitLocked undoes beginWaitLocked for a lease that has ended. The caller holds s.mu.
func (s *Service) endWaitLocked(ts ledger.Fences) {
	for _, t := range ts {
		s.timelines[t.Timeline].dropReferenceLocked()
	}
}

// dropReferenceLocked notes that a lease or a member of a channel does not refer to the timeline any more. The caller holds Service.mu.
func (t *timeline) dropReferenceLocked() {
	t.leases--
	t.retire()
}

// die ends the timeline of a session that has ended. The argument `last` has the values that the timeline's words had when the session's
// process ended. Buffers whose content is complete only at a greater value of a word count as failed. If `last` is nil, every fence of the
// timeline is reached. The caller holds Service.mu.
func (t *timeline) die(last *[mempool.TimelineWords]uint64) {
	if t.dead {
		return
	}
	t.dead = true
	delete(t.session.svc.ledger.Timelines, t.id)
	if last != nil {
		t.fail(func(r mempool.Fence) bool { return last[r.Word] < r.Value })
	} else if t.anyFailed() {
		t.fail(func(r mempool.Fence) bool { return t.page.Failed(r.Word, r.Value) })
	}
	t.retire()
}

// dieIfDone ends the timeline of an ended session if every fence of the timeline is reached. If there may be fences that the service does
// not know, dieIfDone does nothing: the timeline then ends when the service holds nothing any more for the session's process. The caller
// holds Service.mu.
func (t *timeline) dieIfDone() {
	if t != nil && !t.unknown && !t.owed() {
		t.die(nil)
	}
}

// anyFailed reports whether the session has marked any fence as failed: the content at that fence will never be complete. The caller holds
// Service.mu.
func (t *timeline) anyFailed() bool {
	for word, value := range t.promised {
		if value > 0 && t.page.Failed(uint64(word), value) {
			return true
		}
	}
	return false
}

// fail marks buffers as failed. It marks each buffer whose content would be complete only at a fence for which the function `unreached`
// returns true. The caller holds Service.mu.
func (t *timeline) fail(unreached func(mempool.Fence) bool) {
	told, svc := make(failures), t.session.svc
	for b := range svc.ledger.Buffers.All() {
		at := slices.IndexFunc(b.Ready, func(r mempool.Fence) bool { return r.Timeline == t.id && unreached(r) })
		if at < 0 {
			continue
		}
		svc.ledger.Fail(b, t.page.Reason(b.Ready[at].Word))
		svc.changedBuffer(b)
		told.add(b)
		t.session.breaks(b)
	}
	for of, ids := range told {
		svc.sessionOf(of).tell(Failed{Buffers: ids})
	}
}

// failures has, for each session, the ids of the session's leased buffers that will never be complete.
type failures map[*ledger.Session][]uint64

// add adds the sessions that have leases on a buffer.
func (f failures) add(b *ledger.Buffer) {
	for l := range b.Readers.All() {
		f[l.Session] = append(f[l.Session], b.ID)
	}
	if b.Writer != nil {
		f[b.Writer.Session] = append(f[b.Writer.Session], b.ID)
	}
}

// retire removes the timeline if no session can ask for the timeline any more: the timeline is dead, and no lease and no member of a
// channel refers to it. The caller holds Service.mu.
func (t *timeline) retire() {
	svc := t.session.svc
	if !t.dead || t.leases > 0 || svc.timelines[t.id] != t {
		return
	}
	ledger.RemoveKey(&svc.timelines, &svc.most.timelines, t.id)
	for s := range t.shown {
		svc.sessionOf(s).tell(Forget{Timelines: []uint64{t.id}})
	}
	svc.reclaim.timelines = append(svc.reclaim.timelines, t)
}

// close unmaps the timeline's page and closes its file.
func (t *timeline) close() error { return errors.Join(t.page.Close(), t.file.Close()) }

// tell sends a notice to the session, if the session gets notices and has not ended. The caller holds Service.mu.
func (s *Session) tell(n Notice) {
	if s.notify != nil && !s.rec.Ended {
		s.notify(n)
	}
}

// stopShowing removes an ended session from the timelines whose fences the service sent to it. The caller holds Service.mu.
func (s *Session) stopShowing() {
	for t := range maps.Values(s.svc.timelines) {
		delete(t.shown, s.rec)
	}
}
