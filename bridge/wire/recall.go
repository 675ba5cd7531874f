package wire

// Recall asks the client to unmap blocks when no lease needs them, and to send Dropped then.
type Recall struct {
	Blocks []uint64 // block ids
}

var recallFields = record[Recall]{
	uintsField("bl", func(m *Recall) *[]uint64 { return &m.Blocks }),
}

// Notice returns "recall".
func (*Recall) Notice() string { return "recall" }

func (m *Recall) size() int { return recallFields.size(m) }

func (m *Recall) body(e *encoder) error { return recallFields.body(e, m) }

func (m *Recall) decode(d *decoder) error { return recallFields.decode(d, m) }
