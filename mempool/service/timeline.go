package service

import (
	"cmp"
	"context"
	"os"
	"slices"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
	"github.com/poolbridge/poolbridge/mempool/service/streams"
)

// Forget tells a session that the service will not send the session fences of some timelines any more. The session's client may then unmap
// the timelines' pages.
type Forget struct{ Timelines []uint64 }

// Failed tells a session that buffers which it has leased will never be complete: their writer died, or said that the content failed.
type Failed struct{ Buffers []uint64 }

func (Forget) notice() {}
func (Failed) notice() {}

// ProbeTimelines returns an error if sessions cannot have timelines on this machine.
//
// Errors: [mempool.ErrUnavailable], which names what is missing.
func ProbeTimelines() error { return streams.Probe() }

// Timeline makes the session's timeline on the first call, and returns the timeline's id and file. The client maps the file for writing,
// and the caller then calls [Session.SealTimeline]. The service closes the file.
//
// Errors: [mempool.ErrUnavailable], [mempool.ErrOutOfMemory], [mempool.ErrClosed].
func (s *Session) Timeline() (uint64, mempool.Export, error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	if err := s.rec.Alive(); err != nil {
		return 0, mempool.Export{}, err
	}
	if s.rec.Timeline == nil {
		file, err := svc.descriptors.sparesLocked(mempool.PageName)
		defer svc.descriptors.giveBack(file)
		if err = cmp.Or(err, s.rec.Alive()); err != nil {
			return 0, mempool.Export{}, err
		}
		if s.rec.Timeline == nil { // otherwise another call has made it meanwhile
			if err := svc.timelines.Make(svc.ledger, s.rec, file[0].file); err != nil {
				return 0, mempool.Export{}, err
			}
			s.keepAnswerLocked(context.Background(), s.rec.Timeline.ID)
			s.rec.Timeline.File = file[0].use()
		}
	}
	file := svc.timelines.File
	if s.rec.Timeline.Sealed {
		file = svc.timelines.ReadOnly
	}
	return s.rec.Timeline.ID, mempool.Export{Files: []*os.File{file(s.rec.Timeline)}}, nil
}

// SealTimeline seals the file of the session's timeline, which the client has mapped: from then on, no other process can map the file for
// writing, and the session's requests may contain fences of the timeline.
//
// Errors: [mempool.ErrInvalid] if there is no timeline, or if the client has sealed the file in another way; [mempool.ErrClosed].
func (s *Session) SealTimeline() error {
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	if err := s.rec.MaySeal(); err != nil {
		return err
	}
	s.rec.Timeline.Seal()
	s.keepAnswerLocked(context.Background(), 0)
	return nil
}

// FindTimeline returns the file of another session's timeline, for reading.
//
// Errors: [mempool.ErrStale] if the timeline is gone: each of its fences is reached, or never will be. Also if the session can have no fence
// of it, neither from the service nor from memory that it shares. [mempool.ErrClosed].
func (s *Session) FindTimeline(id uint64) (mempool.Export, error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	t, err := svc.ledger.FindTimeline(s.rec, id)
	if err != nil {
		return mempool.Export{}, err
	}
	return mempool.Export{Files: []*os.File{svc.timelines.ReadOnly(t)}}, nil
}

// endTimelineLocked ends the timeline of a session that has ended; the timeline may be nil. The argument `last` has the values that the
// timeline's words had when the session's process ended. Buffers whose content is complete only at a greater value of a word count as failed.
// If `last` is nil, every fence of the timeline is reached.
func (s *Service) endTimelineLocked(t *ledger.Timeline, last *[mempool.TimelineWords]uint64) {
	if t == nil || t.Dead {
		return
	}
	if last != nil {
		s.failBuffersLocked(t, func(r mempool.Fence) bool { return last[r.Word] < r.Value })
	} else if s.timelines.AnyFailed(t) {
		s.failBuffersLocked(t, s.timelines.Failed)
	}
	if s.ledger.EndTimeline(t) {
		s.retireLocked(t)
	}
}

// endTimelineIfDoneLocked ends the timeline of an ended session if every fence of the timeline is reached; the timeline may be nil. If there
// may be fences that the service does not know, endTimelineIfDoneLocked does nothing: the timeline then ends when the service holds nothing
// any more for the session's process.
func (s *Service) endTimelineIfDoneLocked(t *ledger.Timeline) {
	if t != nil && !t.Unknown && !s.timelines.Owed(t) {
		s.endTimelineLocked(t, nil)
	}
}

// failBuffersLocked marks buffers as failed. It marks each buffer whose content would be complete only at a fence of the timeline for which
// the function `unreached` returns true.
func (s *Service) failBuffersLocked(t *ledger.Timeline, unreached func(mempool.Fence) bool) {
	told := make(failures)
	for b := range s.ledger.Buffers.All() {
		at := slices.IndexFunc(b.Ready, func(r mempool.Fence) bool { return r.Timeline == t.ID && unreached(r) })
		if at < 0 {
			continue
		}
		b.Fail(s.timelines.Reason(b.Ready[at]))
		s.changed.broadcast(b)
		told.add(b)
		s.broken.add(t.Session, b, b.Frames > 0)
	}
	for of, ids := range told {
		s.sessionOf(of).tellLocked(Failed{Buffers: ids})
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

// retireLocked frees the memory of a timeline that no session can ask for any more.
func (s *Service) retireLocked(t *ledger.Timeline) {
	for of := range t.Shown {
		s.sessionOf(of).tellLocked(Forget{Timelines: []uint64{t.ID}})
	}
	free := s.timelines.Remove(t)
	s.reclaim.timelines = append(s.reclaim.timelines, func() error {
		if t.File != 0 {
			s.descriptors.dropNow(fileName(t.File))
		}
		return free()
	})
}
