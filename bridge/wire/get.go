package wire

// Get asks for a lease on a named buffer. A LeaseReply answers it.
type Get struct {
	Name  string // buffer name
	Write bool   // for a write lease
	Wait  uint64 // milliseconds to wait
}

var getFields = record[Get]{
	stringField("nm", func(m *Get) *string { return &m.Name }),
	boolField("wr", func(m *Get) *bool { return &m.Write }).maybe(),
	uintField("w", func(m *Get) *uint64 { return &m.Wait }).maybe(),
}

// Op returns "get".
func (*Get) Op() string { return "get" }

func (m *Get) size() int { return getFields.size(m) }

func (m *Get) body(e *encoder) error { return getFields.body(e, m) }

func (m *Get) decode(d *decoder) error { return getFields.decode(d, m) }
