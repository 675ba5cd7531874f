package wire

// Failed says that buffers which the session has leased will never be complete: the process that wrote them died.
type Failed struct {
	Buffers []uint64 // buffer ids
}

var failedFields = record[Failed]{
	uintsField("bf", func(m *Failed) *[]uint64 { return &m.Buffers }),
}

// Notice returns "failed".
func (*Failed) Notice() string { return "failed" }

func (m *Failed) size() int { return failedFields.size(m) }

func (m *Failed) body(e *encoder) error { return failedFields.body(e, m) }

func (m *Failed) decode(d *decoder) error { return failedFields.decode(d, m) }
