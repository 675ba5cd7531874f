package service

import (
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/journal"
)

// This file decides what a session may see. A request finds what it names only with the function find, and lists and counts call the
// same methods visibleTo. So a session gets the same answer for what it may not see and for what does not exist.

// visible is something that not every session may see. The caller of visibleTo holds Service.mu, except for pools, whose access
// lists never change.
type visible interface {
	comparable
	visibleTo(*Session) bool
}

// find returns v if the session may see it. Otherwise it returns the zero value, as if v did not exist.
func find[V visible](s *Session, v V) (none V) {
	if v != none && v.visibleTo(s) {
		return v
	}
	return none
}

// claim does the same as find, for a request that gives the name `text` to something new: v has the name now. If the session may not see v,
// claim returns an error, because names of a kind are unique in the service. The error says nothing about v but that.
func claim[V visible](s *Session, kind, text string, v V) (old V, err error) {
	if old = find(s, v); old != v {
		err = situation.Of(mempool.ErrExists, "the %s name %q is taken: choose another name", kind, text)
	}
	return old, err
}

// owner says whether the session's user is the user that the service runs as, or root. These users see everything.
func (s *Session) owner() bool { return s.svc.Owns(s.peer.UID) }

// Owns says whether a user is the user that the service runs as, or root.
func (s *Service) Owns(uid uint32) bool { return uid == s.uid || uid == 0 }

// mayUse says whether the session may see a pool that the user `maker` made. Only the users and groups on a pool's access list may use the
// pool. The user who made the pool sees it too.
func (s *Session) mayUse(maker uint32, access *mempool.Access) bool {
	return s.owner() || maker == s.peer.UID || access.Allows(s.peer)
}

func (p *Pool) visibleTo(s *Session) bool { return s.mayUse(p.uid, p.access) }

func (ch *channel) visibleTo(s *Session) bool { return ch.pool.visibleTo(s) }

func (b *buffer) visibleTo(s *Session) bool { return b.block.pool.visibleTo(s) }

func (l *Lease) visibleTo(s *Session) bool { return l.buffer.visibleTo(s) }

func (n *name) visibleTo(s *Session) bool { return n.uid == s.peer.UID || n.buffer.visibleTo(s) }

// A session sees its own timeline, and the timelines whose fences the service sent to it or may send to it.
func (t *timeline) visibleTo(s *Session) bool {
	_, shown := t.shown[s]
	return shown || t.session == s
}

func (s *Session) visibleTo(to *Session) bool { return s.peer.UID == to.peer.UID || to.owner() }

// tells says whether the session may see an event.
func (s *Session) tells(e *journal.Entry) bool {
	switch {
	case s.owner():
		return true
	case e.Access != nil:
		return s.mayUse(e.Maker, e.Access)
	}
	return e.Session != 0 && e.UID == s.peer.UID
}
