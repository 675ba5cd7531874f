package wire

// Credit lets the service send more frames. It is usually sent without a reply; otherwise an EmptyReply answers it.
type Credit struct {
	Subscription uint64 // subscription id
	Frames       uint64 // how many more
}

var creditFields = record[Credit]{
	uintField("sb", func(m *Credit) *uint64 { return &m.Subscription }),
	uintField("n", func(m *Credit) *uint64 { return &m.Frames }),
}

// Op returns "credit".
func (*Credit) Op() string { return "credit" }

func (m *Credit) size() int { return creditFields.size(m) }

func (m *Credit) body(e *encoder) error { return creditFields.body(e, m) }

func (m *Credit) decode(d *decoder) error { return creditFields.decode(d, m) }
