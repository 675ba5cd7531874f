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
)

// timeline has what the service knows about the timeline of a session. A timeline is a page of words whose values only grow. Service.mu
// guards every field that can change.
type timeline struct {
	id      uint64
	session *Session
	page    *mempool.Page
	file    *os.File

	sealed   bool
	promised []uint64              // for each word, the greatest value of the fences that the service knows
	dead     bool                  // no process writes the timeline any more, and all waits for its fences are over
	unknown  bool                  // shared memory may have fences of this timeline that the service does not know
	leases   int                   // how many leases wait for fences of this timeline, plus how many channel members write such fences
	shown    map[*Session]struct{} // sessions that got a fence of this timeline, or may find one in shared memory
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
	if err := s.alive(); err != nil {
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
		svc.lastTimeline++
		t := &timeline{id: svc.lastTimeline, session: s, page: page, file: file, shown: make(map[*Session]struct{})}
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
	if err := s.alive(); err != nil {
		return err
	}
	t := s.timeline
	switch {
	case t == nil:
		return situation.Of(mempool.ErrInvalid, "session %d has no timeline to seal; ask for it first", s.id)
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
	if err := s.alive(); err != nil {
		return mempool.Export{}, err
	}
	t := find(s, svc.timelines[id])
	if t == nil {
		return mempool.Export{}, situation.Of(mempool.ErrStale, "timeline %d is gone, and every fence of it is reached or will never be; or session %d was never sent "+
			"a fence of it", id, s.id)
	}
	return mempool.Export{Files: []*os.File{t.file}}, nil
}

// fence checks a fence that the session names, and notes the fence in the session's timeline. The caller holds Service.mu.
func (s *Session) fence(t mempool.Fence) (fence, error) {
	if err := t.Validate(); err != nil {
		return fence{}, err
	}
	own := s.timeline
	switch {
	case own == nil || own.id != t.Timeline:
		return fence{}, situation.Of(mempool.ErrInvalid, "timeline %d is not session %d's own: a session may name only fences of its own timeline", t.Timeline, s.id)
	case !own.sealed:
		return fence{}, situation.Of(mempool.ErrInvalid, "timeline %d is not sealed yet", t.Timeline)
	}
	return own.promise(t.Word, t.Value), nil
}

// promise notes a valid fence of the timeline. The caller holds Service.mu.
func (t *timeline) promise(word, value uint64) fence {
	if missing := int(word) + 1 - len(t.promised); missing > 0 {
		t.promised = append(t.promised, make([]uint64, missing)...)
	}
	t.promised[word] = max(t.promised[word], value)
	return fence{t, word, value}
}

// outstanding returns the fences of the timeline that the service knows and that are not reached yet. The caller holds Service.mu.
func (t *timeline) outstanding() (ts fences) {
	if t == nil || t.dead {
		return nil
	}
	for word, value := range t.promised {
		if value > 0 {
			ts = append(ts, fence{t, uint64(word), value})
		}
	}
	return ts.pending()
}

// fences checks and notes fences that the session names. The caller holds Service.mu.
func (s *Session) fences(named []mempool.Fence) (fences, error) {
	if len(named) > mempool.MaxDone {
		return nil, situation.Of(mempool.ErrInvalid, "%d fences for one lease; at most %d", len(named), mempool.MaxDone)
	}
	var ts fences
	for _, n := range named {
		t, err := s.fence(n)
		if err != nil {
			return nil, err
		}
		ts = ts.add(t)
	}
	return ts.pending(), nil
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

// show notes that a lease of the session waits for fences of the timeline. The caller holds Service.mu.
func (t *timeline) show(s *Session) {
	t.leases++
	t.shown[s] = struct{}{}
}

// unshow undoes show for a lease that has ended.
func (t *timeline) unshow() {
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
	if last != nil {
		t.fail(func(r fence) bool { return last[r.word] < r.value })
	} else if t.anyFailed() {
		t.fail(func(r fence) bool { return t.page.Failed(r.word, r.value) })
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
func (t *timeline) fail(unreached func(fence) bool) {
	told := make(failures)
	for b := range t.session.svc.buffers.all() {
		at := slices.IndexFunc(b.ready, func(r fence) bool { return r.timeline == t && unreached(r) })
		if at < 0 {
			continue
		}
		b.failWith(t.page.Reason(b.ready[at].word))
		b.fail(told)
		t.session.breaks(b)
	}
	told.tell()
}

// failures has, for each session, the ids of the session's leased buffers that will never be complete.
type failures map[*Session][]uint64

// fail marks the buffer as failed, and adds to told the sessions that have leases on the buffer. The caller holds Service.mu.
func (b *buffer) fail(told failures) {
	b.failed = true
	b.changed.broadcast()
	for l := range b.readers.all() {
		told[l.session] = append(told[l.session], b.id)
	}
	if b.writer != nil {
		told[b.writer.session] = append(told[b.writer.session], b.id)
	}
}

// tell sends each session in f a [Failed] notice. The caller holds Service.mu.
func (f failures) tell() {
	for s, ids := range f {
		s.tell(Failed{Buffers: ids})
	}
}

// retire removes the timeline if no session can ask for the timeline any more: the timeline is dead, and no lease and no member of a
// channel refers to it. The caller holds Service.mu.
func (t *timeline) retire() {
	svc := t.session.svc
	if !t.dead || t.leases > 0 || svc.timelines[t.id] != t {
		return
	}
	remove(&svc.timelines, &svc.most.timelines, t.id)
	for s := range t.shown {
		s.tell(Forget{Timelines: []uint64{t.id}})
	}
	svc.reclaim.timelines = append(svc.reclaim.timelines, t)
}

// close unmaps the timeline's page and closes its file.
func (t *timeline) close() error { return errors.Join(t.page.Close(), t.file.Close()) }

// tell sends a notice to the session, if the session gets notices and has not ended. The caller holds Service.mu.
func (s *Session) tell(n Notice) {
	if s.notify != nil && !s.ended {
		s.notify(n)
	}
}

// stopShowing removes an ended session from the timelines whose fences the service sent to it. The caller holds Service.mu.
func (s *Session) stopShowing() {
	for t := range maps.Values(s.svc.timelines) {
		delete(t.shown, s)
	}
}
