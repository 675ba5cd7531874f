package bridge

import "iter"

// leases are those of a client, as a list: to add one and to take it out again costs little. It is guarded by Client.mu.
type leases struct{ last *Lease }

// add adds a lease, which is in no list.
func (ls *leases) add(l *Lease) {
	l.buffer = l.info.Buffer
	l.prev = ls.last
	if l.prev != nil {
		l.prev.next = l
	}
	ls.last = l
}

// remove takes a lease out, if it is there.
func (ls *leases) remove(l *Lease) {
	switch {
	case l.next != nil:
		l.next.prev = l.prev
	case ls.last == l:
		ls.last = l.prev
	default:
		return
	}
	if l.prev != nil {
		l.prev.next = l.next
	}
	l.prev, l.next = nil, nil
}

// all are all leases. The list is not changed meanwhile.
func (ls *leases) all() iter.Seq[*Lease] {
	return func(yield func(*Lease) bool) {
		for l := ls.last; l != nil && yield(l); l = l.prev {
		}
	}
}
