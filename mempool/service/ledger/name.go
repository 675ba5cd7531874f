package ledger

import (
	"math"
	"slices"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Name keeps a published buffer alive and lets other sessions find the buffer.
type Name struct {
	Text   string
	Buffer *Buffer
	UID    uint32   // the user who may replace or remove the name
	Owner  *Session // the name is removed when this session ends; nil: the name stays
	// WhileUsed says that the name is removed when the buffer has no lease and is in no channel, and when its content has failed.
	WhileUsed bool

	Version uint64 // grows with each publication under this name
}

// names is the table of the names.
type names struct {
	Names Index[string, *Name]

	namesOf   Tally
	whileUsed map[uint64][]*Name // by id of a buffer: its names that last while the buffer is used
}

// SetName gives a buffer the name of a session's publication. If a buffer has this name already, SetName removes the old name, and returns it,
// too: its buffer may now be unused. A publication without a version gets the version of the content that it replaces, plus 1.
func (l *Ledger) SetName(p mempool.Publication, b *Buffer, s *Session) (named, old *Name) {
	old = l.Names.Get(p.Name)
	named = &Name{Text: p.Name, Buffer: b, UID: s.Peer.UID, Version: max(p.Version, l.published[b.ID].replaced(old)+1), WhileUsed: p.WhileUsed && !p.Keep}
	if old != nil {
		l.RemoveName(old)
	}
	if !p.Keep && !p.WhileUsed {
		named.Owner = s
	}
	l.putName(named)
	l.published[b.ID] = published{p.Name, named.Version, l.published[b.ID].lost}
	l.Touch(namedBy{l, p.Name})
	l.Touch(b)
	return named, old
}

// putName adds a name to the tables, to its owner and to its buffer.
func (t *names) putName(n *Name) {
	if n.Owner != nil {
		n.Owner.Names[n.Text] = n
	}
	if n.WhileUsed {
		t.whileUsed[n.Buffer.ID] = append(t.whileUsed[n.Buffer.ID], n)
	}
	t.Names.Set(n.Text, n)
	t.namesOf.add(n.UID, 1)
	n.Buffer.Names++
	n.Buffer.Block.Pool.Has.Names++
	n.Buffer.Block.Pool.names.Set(n.Text, n)
}

// RemoveName removes a name. The name's buffer stays, even if nothing holds it any more.
func (l *Ledger) RemoveName(n *Name) {
	l.Names.Remove(n.Text)
	l.Touch(namedBy{l, n.Text})
	l.Touch(n.Buffer)
	l.namesOf.add(n.UID, -1)
	of := l.published[n.Buffer.ID]
	of.lost = max(of.lost, n.Version)
	l.published[n.Buffer.ID] = of
	n.Buffer.Block.Pool.Has.Names--
	n.Buffer.Block.Pool.names.Remove(n.Text)
	if n.Owner != nil {
		RemoveKey(&n.Owner.Names, &n.Owner.most.names, n.Text)
	}
	n.Buffer.Names--
	if n.WhileUsed {
		l.whileUsed[n.Buffer.ID] = slices.DeleteFunc(l.whileUsed[n.Buffer.ID], func(o *Name) bool { return o == n })
	}
}

// EndNames removes the names of the buffer that last while it is used, if it is not used any more, or has failed.
func (b *Buffer) EndNames() {
	l := b.ledger()
	if names := l.whileUsed[b.ID]; len(names) > 0 && (b.Failed || b.Writer == nil && b.Readers.Len() == 0 && b.Frames == 0) {
		for _, n := range slices.Clone(names) {
			l.RemoveName(n)
		}
	}
}

// MayName says whether a session may give the name `text` to the buffer b. The argument `replace` says whether it may take the name from
// another buffer; `version` is the version that the session gave, or 0.
//
// Errors: [mempool.ErrExists], [mempool.ErrDenied] if the name belongs to another user, [mempool.ErrLimit], [mempool.ErrInvalid] for a
// version that does not grow, or cannot.
func (l *Ledger) MayName(s *Session, b *Buffer, text string, replace bool, version uint64) error {
	old, err := Claim(s, "buffer", text, l.Names.Get(text))
	replaced := l.published[b.ID].replaced(old)
	switch have, most := l.namesOf[s.Peer.UID], l.Limits.UserNames; {
	case err != nil:
		return err
	case old != nil && old.UID != s.Peer.UID:
		return typed.Errorf(mempool.ErrDenied, "the name %q belongs to user %d", text, old.UID)
	case old != nil && !replace && old.Buffer != b:
		return typed.Errorf(mempool.ErrExists, "the name %q is taken: pass replace=True (in Go Replace: true), or unpublish it first", text)
	case replaced >= math.MaxInt64: // a packet could not have a greater one
		return typed.Errorf(mempool.ErrInvalid, "%q has the greatest version: unpublish it first, and publish another buffer", text)
	case version > 0 && version <= replaced:
		return typed.Errorf(mempool.ErrInvalid, "version %d of %q is not newer than version %d, which it replaces: give a greater number, or none",
			version, text, replaced)
	case old == nil && have >= most:
		return &LimitError{"user-names", most, s.Peer.String(), "names", have, "unpublish some"}
	}
	return nil
}

// Unpublished returns the error of a session that sees no such name.
func (l *Ledger) Unpublished(s *Session, text string) error {
	names := func(yield func(string, *Name) bool) {
		for _, p := range l.Pools {
			if !p.VisibleTo(s) {
				continue
			}
			near := ""
			if p.names.Len() > maxSimilar && text != "" {
				near = text[:1]
			}
			for one, n := range p.names.After(near) {
				if !yield(one, n) {
					return
				}
			}
		}
	}
	return typed.Errorf(mempool.ErrNotFound, "nothing is published as %q in a pool that user %d may use (poolsvc names shows all)%s",
		text, s.Peer.UID, Similar(s, text, names))
}

// VisibleTo says whether a session may see the name.
func (n *Name) VisibleTo(s *Session) bool { return n.UID == s.Peer.UID || n.Buffer.VisibleTo(s) }
