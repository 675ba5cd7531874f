package wire

// End says that no frame will come for a subscription any more.
type End struct {
	Subscription uint64 // subscription id
	Failure      *Error // nil: the channel was closed in order
}

var endFields = record[End]{
	uintField("sb", func(m *End) *uint64 { return &m.Subscription }),
	pointerField("e", func(m *End) **Error { return &m.Failure }, errorFields),
}

// Notice returns "end".
func (*End) Notice() string { return "end" }

func (m *End) size() int { return endFields.size(m) }

func (m *End) body(e *encoder) error { return endFields.body(e, m) }

func (m *End) decode(d *decoder) error { return endFields.decode(d, m) }
