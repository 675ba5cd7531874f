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
	s.svc.mu.note(s.rec.About(mempool.SessionBegan, "%s began", s.rec.Who()), nil)
}

// add counts a buffer that an ended session has left incomplete, if other sessions could read it or wait for it. The argument `wanted` says
// whether consumers of a channel could read it, or requests wait for it.
func (all broken) add(of *ledger.Session, b *ledger.Buffer, wanted bool) {
	if b.Names == 0 && !wanted && b.Readers.Len() == 0 {
		return
	}
	at := slices.IndexFunc(all[of], func(n *brokenIn) bool { return n.pool == b.Block.Pool })
	if at < 0 {
		at = len(all[of])
		all[of] = append(all[of], &brokenIn{pool: b.Block.Pool, first: b})
	}
	n := all[of][at]
	n.buffers++
	n.bytes += b.Bytes
}

// note notes an event for each pool in which add has counted buffers of a session.
func (all broken) note(of *ledger.Session, mu *mutex) {
	for _, n := range all[of] {
		e := of.About(mempool.WriterDied, "")
		e.Buffer, e.Bytes = n.first.ID, n.bytes
		e.Text = fmt.Sprintf("%s ended with %s (%s) incomplete, the first of which is %d in pool %q: others that read them get an error", of.Who(),
			count.Of(n.buffers, "buffer"), bytesize.Text(n.bytes), n.first.ID, n.pool.Info.Name)
		mu.note(e, n.pool)
	}
	delete(all, of)
}
