package wire

// Lost says that a Send without a number failed. The lease lives on.
type Lost struct {
	Channel uint64 // channel id, as it was sent
	Lease   uint64 // lease id, as it was sent
	Failure Error
}

var lostFields = record[Lost]{
	uintField("ch", func(m *Lost) *uint64 { return &m.Channel }),
	uintField("l", func(m *Lost) *uint64 { return &m.Lease }),
	structField("e", func(m *Lost) *Error { return &m.Failure }, errorFields),
}

// Notice returns "lost".
func (*Lost) Notice() string { return "lost" }

func (m *Lost) size() int { return lostFields.size(m) }

func (m *Lost) body(e *encoder) error { return lostFields.body(e, m) }

func (m *Lost) decode(d *decoder) error { return lostFields.decode(d, m) }
