package wire

// Release ends a lease. It is usually sent without a reply; otherwise an EmptyReply answers it.
type Release struct {
	Lease  uint64 // lease id
	Failed bool   // what was written is incomplete
}

var releaseFields = record[Release]{
	uintField("l", func(m *Release) *uint64 { return &m.Lease }),
	boolField("fl", func(m *Release) *bool { return &m.Failed }).maybe(),
}

// Op returns "release".
func (*Release) Op() string { return "release" }

func (m *Release) size() int { return releaseFields.size(m) }

func (m *Release) body(e *encoder) error { return releaseFields.body(e, m) }

func (m *Release) decode(d *decoder) error { return releaseFields.decode(d, m) }
