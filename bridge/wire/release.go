package wire

// Release ends a lease, or several in the same way: as many of them as can be ended, whatever becomes of the others. It is
// usually sent without a reply; otherwise an EmptyReply answers it.
type Release struct {
	Lease  uint64   // lease id
	Failed bool     // what was written is incomplete; a frame of a queue that is not settled goes back to it
	Done   []Ticket // when the work that used the lease is done; empty: now
	Also   []uint64 // further leases
}

var releaseFields = record[Release]{
	uintField("l", func(m *Release) *uint64 { return &m.Lease }),
	boolField("fl", func(m *Release) *bool { return &m.Failed }).maybe(),
	structsField("dt", func(m *Release) *[]Ticket { return &m.Done }, ticketFields).maybe(),
	uintsField("al", func(m *Release) *[]uint64 { return &m.Also }).maybe(),
}

// Op returns "release".
func (*Release) Op() string { return "release" }

func (m *Release) size() int { return releaseFields.size(m) }

func (m *Release) body(e *encoder) error { return releaseFields.body(e, m) }

func (m *Release) decode(d *decoder) error { return releaseFields.decode(d, m) }
