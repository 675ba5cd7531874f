package service

import (
	"fmt"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// This file notes an event when a session begins and when it ends.

// ending says how a session ended. Service.mu guards ending.
type ending struct {
	how     mempool.SessionEnding
	at      time.Time
	lingers bool // after the end, the service still held something for the session's process
}

// noteUse is called when the session uses memory or a channel. On the first call, noteUse notes an event that says that the session began.
// Sessions that only ask for lists or statistics cause no event. The caller holds Service.mu.
func (s *Session) noteUse() {
	if s.told || s.rec.Ended {
		return
	}
	s.told = true
	e := s.rec.About(mempool.SessionBegan, "%s began", s.rec.Who())
	e.At = s.rec.Began
	s.svc.note(e, nil)
}

// noteEnd counts the end of the session. It also notes an event in three cases: noteUse has noted an event of the session, an operator
// ended the session, or the service ended the session because of an error. The caller holds Service.mu.
func (s *Session) noteEnd(how mempool.SessionEnding, why string) {
	s.ending = ending{how: how, at: time.Now()}
	s.svc.journal.CountEnding(how)
	if !s.told && how != mempool.SessionFailed && how != mempool.SessionClosed {
		return
	}
	text := map[mempool.SessionEnding]string{
		mempool.SessionLeft:     "the client closed it",
		mempool.SessionLost:     "the connection broke off, as it does when the process is killed, or ends without closing it",
		mempool.SessionClosed:   "an operator ended it",
		mempool.SessionFailed:   "the service ended it",
		mempool.SessionShutdown: "the service is shutting down",
	}[how]
	if why != "" {
		text += ": " + why
	}
	e := s.rec.About(mempool.SessionEnded, "")
	e.Ending = how
	e.Bytes = s.rec.Bytes()
	e.Text = fmt.Sprintf("%s ended after %v with %s and %s: %s", s.rec.Who(), s.ending.at.Sub(s.rec.Began).Round(time.Millisecond), count.Of(len(s.rec.Leases), "lease"),
		bytesize.Text(e.Bytes), text)
	s.svc.note(e, nil)
}

// noteReclaimed counts how long the service held memory, a timeline or a slot for the process of an ended session. The argument `held` has
// the blocks that the session had leased when it ended. If there are such blocks, noteReclaimed also notes an event. The caller holds
// Service.mu.
func (s *Session) noteReclaimed(held []*ledger.Block) {
	e := s.rec.About(mempool.MemoryReclaimed, "")
	e.Ending, e.Took = s.ending.how, time.Since(s.ending.at)
	s.svc.journal.CountReclaim(e.Took)
	for _, b := range held {
		e.Bytes += b.Size
	}
	if e.Bytes == 0 {
		return
	}
	e.Text = fmt.Sprintf("nothing is held any more for the process of %s, which ended %v ago with leases on %s", s.rec.Who(),
		e.Took.Round(time.Microsecond), bytesize.Text(e.Bytes))
	s.svc.note(e, nil)
}

// broken counts the incomplete buffers that an ended session has left in a pool and that other sessions could read. Service.mu guards broken.
type broken struct {
	pool    *ledger.Pool
	buffers int
	bytes   uint64
	first   *ledger.Buffer
}

// breaks counts a buffer that an ended session has left incomplete, if other sessions could read it or wait for it. The caller holds s.mu.
func (s *Service) breaks(of *ledger.Session, b *ledger.Buffer) {
	if b.Names == 0 && b.Frames == 0 && b.Readers.Len() == 0 && s.changed[b.ID] == nil {
		return
	}
	at := slices.IndexFunc(s.broken[of], func(n *broken) bool { return n.pool == b.Block.Pool })
	if at < 0 {
		at = len(s.broken[of])
		s.broken[of] = append(s.broken[of], &broken{pool: b.Block.Pool, first: b})
	}
	n := s.broken[of][at]
	n.buffers++
	n.bytes += b.Bytes
}

// noteBroken notes an event for each pool in which breaks has counted buffers of a session. The caller holds s.mu.
func (s *Service) noteBroken(of *ledger.Session) {
	for _, n := range s.broken[of] {
		e := of.About(mempool.WriterDied, "")
		e.Buffer, e.Bytes = n.first.ID, n.bytes
		e.Text = fmt.Sprintf("%s ended with %s (%s) incomplete, the first of which is %d in pool %q: others that read them get an error", of.Who(),
			count.Of(n.buffers, "buffer"), bytesize.Text(n.bytes), n.first.ID, n.pool.Info.Name)
		s.note(e, n.pool)
	}
	delete(s.broken, of)
}
