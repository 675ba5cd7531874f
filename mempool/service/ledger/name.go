package ledger

import (
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Name keeps a published buffer alive and lets other sessions find the buffer.
type Name struct {
	Text   string
	Buffer *Buffer
	UID    uint32   // the user who may replace or remove the name
	Owner  *Session // the name is removed when this session ends; nil: the name stays
}

// names is the table of the names.
type names struct {
	Names Index[string, *Name]

	namesOf Tally
}

// SetName gives a buffer a name for a session. If the argument `keep` is true, the name stays when the session ends. If another buffer or
// the same buffer has the name, SetName replaces the name and returns the old one, whose buffer may now be unused.
func (t *names) SetName(text string, b *Buffer, s *Session, keep bool) (old *Name) {
	old = t.Names.Get(text)
	n := &Name{Text: text, Buffer: b, UID: s.Peer.UID}
	if old != nil {
		t.RemoveName(old)
	}
	if !keep {
		n.Owner = s
	}
	t.putName(n)
	return old
}

// putName adds a name to the tables, to its owner and to its buffer.
func (t *names) putName(n *Name) {
	if n.Owner != nil {
		n.Owner.Names[n.Text] = n
	}
	t.Names.Set(n.Text, n)
	t.namesOf.add(n.UID, 1)
	n.Buffer.Names++
	n.Buffer.Block.Pool.Has.Names++
}

// RemoveName removes a name. The name's buffer stays, even if nothing holds it any more.
func (t *names) RemoveName(n *Name) {
	t.Names.Remove(n.Text)
	t.namesOf.add(n.UID, -1)
	n.Buffer.Block.Pool.Has.Names--
	if n.Owner != nil {
		RemoveKey(&n.Owner.Names, &n.Owner.most.names, n.Text)
	}
	n.Buffer.Names--
}

// MayName says whether a session may give the name `text` to the buffer b. The argument `replace` says whether it may take the name from
// another buffer.
//
// Errors: [mempool.ErrExists], [mempool.ErrDenied] if the name belongs to another user, [mempool.ErrLimit].
func (l *Ledger) MayName(s *Session, b *Buffer, text string, replace bool) error {
	old, err := Claim(s, "buffer", text, l.Names.Get(text))
	switch {
	case err != nil:
		return err
	case old == nil:
		return l.mayName(s)
	case old.UID != s.Peer.UID:
		return typed.Errorf(mempool.ErrDenied, "the name %q belongs to user %d", text, old.UID)
	case !replace && old.Buffer != b:
		return typed.Errorf(mempool.ErrExists, "the name %q is taken: pass replace=True (in Go Replace: true), or unpublish it first", text)
	}
	return nil
}

// Unpublished returns the error of a session that sees no such name.
func (s *Session) Unpublished(text string) error {
	return typed.Errorf(mempool.ErrNotFound, "nothing is published as %q in a pool that user %d may use", text, s.Peer.UID)
}

// VisibleTo says whether a session may see the name.
func (n *Name) VisibleTo(s *Session) bool { return n.UID == s.Peer.UID || n.Buffer.VisibleTo(s) }
