package service

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// End ends the session: its leases end, its names are removed, its waiting requests fail, and the buffers that the session was writing
// count as failed. The caller closes the channel `gone` when the session's process can no longer touch memory. If `gone` is nil, the
// process can no longer touch memory at the time of the call. Until `gone` is closed, blocks that the session had leased are not used
// again, and blocks that it had mapped are not freed. End returns a channel that is closed after all these blocks are reclaimed.
//
// The session's timeline ends when all its fences are reached, or when the process ends. If the process ends first, all waits for the
// timeline's fences end, and buffers with incomplete content fail.
//
// The arguments `how` and `why` say in the history how and why the session ended.
func (s *Session) End(how mempool.SessionEnding, why string, gone <-chan struct{}) <-chan struct{} {
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	if s.rec.Ended {
		return s.reclaimed
	}
	svc.ledger.EndSession(s.rec)
	s.ending = &ending{Session: s, how: how, at: time.Now()}
	s.ending.noteLocked(why)
	close(s.over)
	svc.removeNamesLocked(s.rec)
	lent := svc.channels.expelLocked(s.rec, how)
	for _, l := range slices.SortedFunc(maps.Values(s.rec.Leases), func(a, b *ledger.Lease) int { return cmp.Compare(a.ID, b.ID) }) {
		b := l.Buffer.Block
		b.Hold(s.rec)
		s.ending.held = append(s.ending.held, b)
		svc.endLeaseLocked(l, l.Write && !lent.Retain(l), nil)
	}
	svc.channels.tidyLocked(s.rec)
	svc.endTimelineIfDoneLocked(s.rec.Timeline)
	svc.broken.note(s.rec, &svc.mu)
	if gone == nil || !s.ending.holdsLocked() {
		s.ending.reclaimLocked()
		return s.reclaimed
	}
	s.ending.lingerLocked(gone)
	return s.reclaimed
}

// lingerLocked starts linger.
func (e *ending) lingerLocked(gone <-chan struct{}) {
	if e.rec.Consumes() {
		e.swept = make(chan struct{})
	}
	swept := e.swept
	e.lingers = true
	e.svc.background.Go(func() { e.linger(gone, swept) })
}

// holdsLocked says whether the service holds something for the process of the session.
func (e *ending) holdsLocked() bool {
	return len(e.held) > 0 || len(e.rec.Mapped) > 0 || e.svc.timelines.Owed(e.rec.Timeline) || e.rec.Consumes()
}

// linger calls reclaimLocked as soon as the session's process is gone, or as soon as the service holds nothing for that
// process.
func (e *ending) linger(gone, swept <-chan struct{}) {
	svc := e.svc
	owed, over := true, false
	for pause := drainPause; !over; pause = min(2*pause, lingerRest) {
		var look <-chan time.Time
		if owed { // a stream that writes a word notifies nobody
			look = time.After(pause)
		}
		select {
		case <-gone:
			over = true
		case <-svc.closing:
			over = true
		case <-swept:
			swept = nil
		case <-look:
		}
		svc.mu.Lock()
		if !over {
			svc.endTimelineIfDoneLocked(e.rec.Timeline)
			owed = svc.timelines.Owed(e.rec.Timeline)
			over = !e.holdsLocked()
		}
		if over {
			e.reclaimLocked()
		}
		svc.freeAndUnlock()
	}
}

// reclaimLocked takes back from the session the blocks that it had leased or mapped. reclaimLocked releases the mutex for driver calls.
func (e *ending) reclaimLocked() {
	svc, s := e.svc, e.Session
	var last *[mempool.TimelineWords]uint64
	if t, owed := s.rec.Timeline, svc.timelines.Owed(s.rec.Timeline); owed || t != nil && t.Unknown && !t.Dead {
		if words := svc.timelines.LetGo(t); owed {
			last = &words
		}
	}
	svc.endTimelineLocked(s.rec.Timeline, last)
	for _, m := range s.rec.SortedMembers() {
		svc.channels.of(m.Channel).Gone(m)
	}
	svc.channels.tidyLocked(s.rec)
	for _, b := range e.held {
		b.Left(s.rec)
		svc.pools.of(b.Pool).endHoldLocked(b)
	}
	for _, b := range s.rec.Mapped {
		svc.pools.of(b.Pool).unmapLocked(s.rec, b)
	}
	svc.broken.note(s.rec, &svc.mu)
	svc.ledger.ForgetSession(s.rec)
	ledger.RemoveKey(&svc.sessions, &svc.most, s.rec.ID)
	svc.reclaim.flushLogged()
	if e.lingers {
		e.noteReclaimedLocked()
	}
	close(s.reclaimed)
}

// noteLocked counts the end of the session. It also notes an event in three cases: noteUse has noted an event of the session, an operator
// ended the session, or the service ended the session because of an error.
func (e *ending) noteLocked(why string) {
	s := e.Session
	s.svc.eventLog.CountEnding(e.how)
	if !s.told && e.how != mempool.SessionFailed && e.how != mempool.SessionClosed {
		return
	}
	text := map[mempool.SessionEnding]string{
		mempool.SessionLeft:     "the client closed it",
		mempool.SessionLost:     "the connection broke off, as it does when the process is killed, or ends without closing it",
		mempool.SessionClosed:   "an operator ended it",
		mempool.SessionFailed:   "the service ended it",
		mempool.SessionShutdown: "the service is shutting down",
	}[e.how]
	switch {
	case why != "" && e.how == mempool.SessionLost: // which needs no guess then
		text = why
	case why != "":
		text += ": " + why
	}
	ended := s.rec.About(mempool.SessionEnded, "")
	ended.Ending = e.how
	ended.Bytes = s.rec.Bytes()
	ended.Text = fmt.Sprintf("%s ended after %v with %s and %s: %s", s.rec.Who(), e.at.Sub(s.rec.Began).Round(time.Millisecond), count.Of(len(s.rec.Leases), "lease"),
		s.rec.Holdings(), text)
	s.svc.mu.note(ended, nil)
}

// noteReclaimedLocked counts how long the service held memory, a timeline or a seat for the process of the session. If the session had leased
// blocks when it ended, noteReclaimedLocked also notes an event.
func (e *ending) noteReclaimedLocked() {
	took := time.Since(e.at)
	e.svc.eventLog.CountReclaim(took)
	if len(e.held) == 0 {
		return
	}
	done := e.rec.About(mempool.MemoryReclaimed, "")
	done.Ending, done.Took = e.how, took
	for _, b := range e.held {
		done.Bytes += b.Size
	}
	done.Text = fmt.Sprintf("nothing is held any more for the process of %s, which ended %v ago with leases on %s", e.rec.Who(),
		took.Round(time.Microsecond), bytesize.Text(done.Bytes))
	e.svc.mu.note(done, nil)
}
