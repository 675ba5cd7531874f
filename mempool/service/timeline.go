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

// timeline is a session's page of words, as the service knows it. It is guarded by Service.mu, except what never changes.
type timeline struct {
	id      uint64
	session *Session
	page    *mempool.Page
	file    *os.File

	sealed   bool
	promised []uint64              // the greatest value that a fence named, for each word up to the last that one did
	dead     bool                  // nobody writes it any more, and nobody need wait for it
	unknown  bool                  // its fences may stand in shared memory, where the service has not seen them
	leases   int                   // that were told to wait for a fence of it, and members of channels that it is of
	shown    map[*Session]struct{} // who was sent a fence of it, or may find one in shared memory
}

// Forget tells a session that no fence of these timelines will come again: it may unmap them.
type Forget struct{ Timelines []uint64 }

// Failed tells a session that buffers which it has leased will never be complete: their writer died.
type Failed struct{ Buffers []uint64 }

func (Forget) notice() {}
func (Failed) notice() {}

// timelinesWork says whether this machine can make timelines: F_SEAL_FUTURE_WRITE came with Linux 5.1.
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

// ProbeTimelines says whether sessions can have timelines on this machine.
//
// Errors: [mempool.ErrUnavailable], naming what is missing.
func ProbeTimelines() error { return timelinesWork() }

// UseTimelines says that the session understands fences: leases come with those that must be waited for. Other sessions
// wait for [Lease.AwaitWork].
func (s *Session) UseTimelines() {
	s.svc.mu.Lock()
	defer s.svc.mu.Unlock()
	s.ordered = true
}

// Timeline makes the session's timeline on the first call, and returns its id and how to map it. It is to be mapped to
// write before it is sealed. Its file stays the service's.
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

// SealTimeline says that the session has mapped its timeline. Nobody else can map it to write from then on, and its fences
// count.
//
// Errors: [mempool.ErrInvalid] if there is none, or if the client sealed its file in another way; [mempool.ErrClosed].
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

// FindTimeline returns how to map another session's timeline, to read.
//
// Errors: [mempool.ErrNotFound] for an id that no timeline ever had, [mempool.ErrStale] for one that is gone, [mempool.ErrDenied] for one that the
// session was never sent a fence of, [mempool.ErrClosed].
func (s *Session) FindTimeline(id uint64) (mempool.Export, error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	if err := s.alive(); err != nil {
		return mempool.Export{}, err
	}
	t := svc.timelines[id]
	if t == nil && (id == 0 || id > svc.lastTimeline) {
		return mempool.Export{}, situation.Of(mempool.ErrNotFound, "no timeline ever had the id %d", id)
	}
	if t == nil {
		return mempool.Export{}, situation.Of(mempool.ErrStale, "timeline %d is gone, and every fence of it is reached or will never be", id)
	}
	if _, ok := t.shown[s]; !ok && t.session != s {
		return mempool.Export{}, situation.Of(mempool.ErrDenied, "session %d was never sent a fence of timeline %d", s.id, id)
	}
	return mempool.Export{Files: []*os.File{t.file}}, nil
}

// fence checks a fence that the session names and takes it into the service's state. Service.mu is held.
func (s *Session) fence(t mempool.Fence) (fence, error) {
	if err := t.Validate(); err != nil {
		return fence{}, err
	}
	own := s.timeline
	switch {
	case own == nil || own.id != t.Timeline:
		return fence{}, situation.Of(mempool.ErrInvalid, "timeline %d is not session %d's own, whose fences alone it may name", t.Timeline, s.id)
	case !own.sealed:
		return fence{}, situation.Of(mempool.ErrInvalid, "timeline %d is not sealed yet", t.Timeline)
	}
	return own.promise(t.Word, t.Value), nil
}

// promise takes a valid fence of the timeline into the service's state. Service.mu is held.
func (t *timeline) promise(word, value uint64) fence {
	if missing := int(word) + 1 - len(t.promised); missing > 0 {
		t.promised = append(t.promised, make([]uint64, missing)...)
	}
	t.promised[word] = max(t.promised[word], value)
	return fence{t, word, value}
}

// outstanding are the fences of the timeline that are not reached yet, as far as the service knows. Service.mu is held.
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

// fences checks fences that the session names. Service.mu is held.
func (s *Session) fences(named []mempool.Fence) (fences, error) {
	if len(named) > MaxDone {
		return nil, situation.Of(mempool.ErrInvalid, "%d fences for one lease; at most %d", len(named), MaxDone)
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

// MaxDone is how many fences can end one lease.
const MaxDone = 16

// owed says whether some fence of the timeline is not reached yet. Service.mu is held.
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

// show notes that a lease waits for fences of the timeline. Service.mu is held.
func (t *timeline) show(s *Session) {
	t.leases++
	t.shown[s] = struct{}{}
}

// unshow ends what show began.
func (t *timeline) unshow() {
	t.leases--
	t.retire()
}

// die ends the timeline of a session that has ended. last is what its words were when its process was gone; nil if every
// fence is reached. What was to be complete and is not has failed. Service.mu is held.
func (t *timeline) die(last *[mempool.TimelineWords]uint64) {
	if t.dead {
		return
	}
	t.dead = true
	if last != nil {
		t.fail(last)
	}
	t.retire()
}

// dieIfDone ends the timeline of a session that has ended if every fence of it is reached. One of which not every fence is known
// lives as long as anything is held for the session's process. Service.mu is held.
func (t *timeline) dieIfDone() {
	if t != nil && !t.unknown && !t.owed() {
		t.die(nil)
	}
}

// fail marks the buffers whose content was not complete. Service.mu is held.
func (t *timeline) fail(last *[mempool.TimelineWords]uint64) {
	told := make(failures)
	for _, b := range t.session.svc.buffers {
		if slices.ContainsFunc(b.ready, func(r fence) bool { return r.timeline == t && last[r.word] < r.value }) {
			b.fail(told)
			t.session.breaks(b)
		}
	}
	told.tell()
}

// failures are the sessions to be told that buffers will never be complete.
type failures map[*Session][]uint64

// fail says that the content will never be complete. Service.mu is held.
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

// tell tells them. Service.mu is held.
func (f failures) tell() {
	for s, ids := range f {
		s.tell(Failed{Buffers: ids})
	}
}

// retire gives the page up once nobody can ask for it: it is dead, and no lease and no member of a channel names it. Service.mu is held.
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

// close gives the page back.
func (t *timeline) close() error { return errors.Join(t.page.Close(), t.file.Close()) }

// tell gives a session a notice, if it takes any. Service.mu is held.
func (s *Session) tell(n Notice) {
	if s.notify != nil && !s.ended {
		s.notify(n)
	}
}

// stopShowing forgets what an ended session was sent. Service.mu is held.
func (s *Session) stopShowing() {
	for t := range maps.Values(s.svc.timelines) {
		delete(t.shown, s)
	}
}
