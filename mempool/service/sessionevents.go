package service

import (
	"fmt"
	"slices"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// This file notes an event when a session begins, and when it ended with incomplete buffers.

// noteUse is called when the session uses memory or a channel. On the first call, noteUse notes an event that says that the session began.
// Sessions that only ask for lists or statistics cause no event. The caller holds Service.mu.
func (s *Session) noteUse() {
	if s.told || s.rec.Ended {
		return
	}
	s.told = true
	s.svc.note(s.rec.About(mempool.SessionBegan, "%s began", s.rec.Who()), nil)
}

// breaksLocked counts a buffer that an ended session has left incomplete, if other sessions could read it or wait for it. The argument
// `framed` says whether consumers of a channel could read it.
func (s *Service) breaksLocked(of *ledger.Session, b *ledger.Buffer, framed bool) {
	if b.Names == 0 && !framed && b.Readers.Len() == 0 && s.changed[b.ID] == nil {
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

// noteBrokenLocked notes an event for each pool in which breaksLocked has counted buffers of a session.
func (s *Service) noteBrokenLocked(of *ledger.Session) {
	for _, n := range s.broken[of] {
		e := of.About(mempool.WriterDied, "")
		e.Buffer, e.Bytes = n.first.ID, n.bytes
		e.Text = fmt.Sprintf("%s ended with %s (%s) incomplete, the first of which is %d in pool %q: others that read them get an error", of.Who(),
			count.Of(n.buffers, "buffer"), bytesize.Text(n.bytes), n.first.ID, n.pool.Info.Name)
		s.note(e, n.pool)
	}
	delete(s.broken, of)
}
