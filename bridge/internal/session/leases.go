package session

import "iter"

// leases is the list of a session's leases. Adding and removing a lease is cheap. Blocks.mu guards it.
type leases struct{ last *Lease }

// add adds a lease. The lease must not be in a list.
func (ls *leases) add(l *Lease) {
	l.buffer = l.info.Buffer
	l.prev = ls.last
	if l.prev != nil {
		l.prev.next = l
	}
	ls.last = l
}

// remove removes a lease. It does nothing if the lease is not in the list.
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

// all iterates over all leases. The list must not change meanwhile.
func (ls *leases) all() iter.Seq[*Lease] {
	return func(yield func(*Lease) bool) {
		for l := ls.last; l != nil && yield(l); l = l.prev {
		}
	}
}
