package wire

// Publish names the buffer of a write lease, whose content is complete. An EmptyReply answers it.
type Publish struct {
	Lease   uint64  // write lease
	Name    string  // buffer name
	Tensor  *Tensor // a new description of the content; nil: as allocated
	Keep    bool    // keep the name when the session ends
	Replace bool    // replace an existing name of the same owner
	Ready   *Ticket // when the content is complete; nil: now, or when the event says so
	Event   []byte  // an interprocess event that stands for the same
}

var publishFields = record[Publish]{
	uintField("l", func(m *Publish) *uint64 { return &m.Lease }),
	stringField("nm", func(m *Publish) *string { return &m.Name }),
	pointerField("t", func(m *Publish) **Tensor { return &m.Tensor }, tensorFields),
	boolField("kp", func(m *Publish) *bool { return &m.Keep }).maybe(),
	boolField("rp", func(m *Publish) *bool { return &m.Replace }).maybe(),
	pointerField("rt", func(m *Publish) **Ticket { return &m.Ready }, ticketFields),
	binaryField("ev", func(m *Publish) *[]byte { return &m.Event }).maybe(),
}

// Op returns "publish".
func (*Publish) Op() string { return "publish" }

func (m *Publish) size() int { return publishFields.size(m) }

func (m *Publish) body(e *encoder) error { return publishFields.body(e, m) }

func (m *Publish) decode(d *decoder) error { return publishFields.decode(d, m) }
