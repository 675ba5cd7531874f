package ledger

import (
	"fmt"
	"iter"

	"github.com/poolbridge/poolbridge/internal/similar"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// This file decides what a session may see. Each record has a method VisibleTo. A request finds what it names only with the function Find, and
// lists and counts call the same methods. So a session gets the same answer for what it may not see and for what does not exist.

// Visible is something that not every session may see.
type Visible interface {
	comparable
	VisibleTo(*Session) bool
}

// Find returns v if the session may see it. Otherwise it returns the zero value, as if v did not exist.
func Find[V Visible](s *Session, v V) (none V) {
	if v != none && v.VisibleTo(s) {
		return v
	}
	return none
}

// maxSimilar is how many names Similar compares.
const maxSimilar = 256

// Similar ends the error of a session that does not see a name: it asks whether one of those of `all` was meant that the session sees. Names
// that the session does not see change nothing, not even how many others Similar compares.
func Similar[V Visible](s *Session, name string, all iter.Seq2[string, V]) string {
	return similar.Hint(name, func(yield func(string) bool) {
		looked := 0
		for one, v := range all {
			if !v.VisibleTo(s) {
				continue
			}
			if looked++; looked > maxSimilar || !yield(one) {
				return
			}
		}
	})
}

// Claim does the same as Find, for a request that gives the name `text` to something new: v has the name now. If the session may not see v,
// Claim returns an error, because names of a kind are unique in the service. The error says nothing about v but that.
func Claim[V Visible](s *Session, kind, text string, v V) (old V, err error) {
	if old = Find(s, v); old != v {
		err = typed.Errorf(mempool.ErrExists, "the %s name %q is taken: choose another name", kind, text)
	}
	return old, err
}

// MaySee says whether the session may see a pool that the user `maker` made: if it may use the pool (its access list), if its user made the
// pool, or if it sees everything.
func (s *Session) MaySee(maker uint32, access *mempool.Access) bool {
	return s.Owner || maker == s.Peer.UID || access.Allows(s.Peer)
}

// VisibleTo says whether another session may see the session.
func (s *Session) VisibleTo(to *Session) bool { return s.Peer.UID == to.Peer.UID || to.Owner }

func (s *Session) String() string { return fmt.Sprintf("session %d (pid %d)", s.ID, s.Peer.PID) }

// Who returns the session's name for the text of an event.
func (s *Session) Who() string {
	if s.Program == "" {
		return fmt.Sprintf("session %d (pid %d, user %d)", s.ID, s.Peer.PID, s.Peer.UID)
	}
	return fmt.Sprintf("session %d (%q, pid %d, user %d)", s.ID, s.Program, s.Peer.PID, s.Peer.UID)
}

// About makes an event about the session.
func (s *Session) About(kind mempool.EventKind, format string, args ...any) mempool.HistoryEvent {
	return mempool.HistoryEvent{Kind: kind, Session: s.ID, PID: s.Peer.PID, UID: s.Peer.UID, Program: s.Program, Text: fmt.Sprintf(format, args...)}
}

// Alive returns an error if the session has ended.
func (s *Session) Alive() error {
	if s.Ended {
		return s.HasEnded()
	}
	return nil
}

// HasEnded returns the error of a session that has ended.
func (s *Session) HasEnded() error {
	return typed.Errorf(mempool.ErrClosed, "session %d has ended", s.ID)
}
