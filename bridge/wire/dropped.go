package wire

// Dropped says which mappings the client has given up. It is usually sent without a reply; otherwise an EmptyReply answers it.
type Dropped struct {
	Blocks []uint64 // block ids
}

var droppedFields = record[Dropped]{
	uintsField("bl", func(m *Dropped) *[]uint64 { return &m.Blocks }),
}

// Op returns "dropped".
func (*Dropped) Op() string { return "dropped" }

func (m *Dropped) size() int { return droppedFields.size(m) }

func (m *Dropped) body(e *encoder) error { return droppedFields.body(e, m) }

func (m *Dropped) decode(d *decoder) error { return droppedFields.decode(d, m) }
