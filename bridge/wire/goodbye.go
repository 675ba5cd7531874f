package wire

// Goodbye says that the service is about to close the connection.
type Goodbye struct {
	Reason Error
}

// Notice returns "goodbye".
func (*Goodbye) Notice() string { return "goodbye" }

func (m *Goodbye) size() int { return errorFields.size(&m.Reason) }

func (m *Goodbye) body(e *encoder) error { return errorFields.body(e, &m.Reason) }

func (m *Goodbye) decode(d *decoder) error { return errorFields.decode(d, &m.Reason) }
