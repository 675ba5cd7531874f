package wire

// Forget says that no ticket of these timelines will come again: the client may unmap them.
type Forget struct {
	Timelines []uint64 // timeline ids
}

var forgetFields = record[Forget]{
	uintsField("tl", func(m *Forget) *[]uint64 { return &m.Timelines }),
}

// Notice returns "forget".
func (*Forget) Notice() string { return "forget" }

func (m *Forget) size() int { return forgetFields.size(m) }

func (m *Forget) body(e *encoder) error { return forgetFields.body(e, m) }

func (m *Forget) decode(d *decoder) error { return forgetFields.decode(d, m) }
