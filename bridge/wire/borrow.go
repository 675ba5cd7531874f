package wire

// Borrow is the operation "lease": it asks for a lease on a buffer by its id. A LeaseReply answers it.
type Borrow struct {
	Buffer     uint64 // buffer id
	Generation uint64 // generation of its block
	Write      bool   // for a write lease
	Wait       uint64 // milliseconds to wait
}

var borrowFields = record[Borrow]{
	uintField("bf", func(m *Borrow) *uint64 { return &m.Buffer }),
	uintField("ge", func(m *Borrow) *uint64 { return &m.Generation }),
	boolField("wr", func(m *Borrow) *bool { return &m.Write }).maybe(),
	uintField("w", func(m *Borrow) *uint64 { return &m.Wait }).maybe(),
}

// Op returns "lease".
func (*Borrow) Op() string { return "lease" }

func (m *Borrow) size() int { return borrowFields.size(m) }

func (m *Borrow) body(e *encoder) error { return borrowFields.body(e, m) }

func (m *Borrow) decode(d *decoder) error { return borrowFields.decode(d, m) }
