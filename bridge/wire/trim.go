package wire

// Trim gives unused blocks back to the driver.
type Trim struct {
	Pool uint64 // pool id
	Keep uint64 // bytes of unused blocks to keep
}

var trimFields = record[Trim]{
	uintField("pl", func(m *Trim) *uint64 { return &m.Pool }),
	uintField("n", func(m *Trim) *uint64 { return &m.Keep }).maybe(),
}

// Op returns "trim".
func (*Trim) Op() string { return "trim" }

func (m *Trim) size() int { return trimFields.size(m) }

func (m *Trim) body(e *encoder) error { return trimFields.body(e, m) }

func (m *Trim) decode(d *decoder) error { return trimFields.decode(d, m) }

// TrimReply answers Trim.
type TrimReply struct {
	Bytes uint64 // bytes given back
}

var trimReplyFields = record[TrimReply]{
	uintField("n", func(m *TrimReply) *uint64 { return &m.Bytes }),
}

func (*TrimReply) reply() {}

func (m *TrimReply) size() int { return trimReplyFields.size(m) }

func (m *TrimReply) body(e *encoder) error { return trimReplyFields.body(e, m) }

func (m *TrimReply) decode(d *decoder) error { return trimReplyFields.decode(d, m) }
