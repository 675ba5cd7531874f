package wire

// Goodbye says that the service is about to close the connection.
type Goodbye struct {
	Reason string // text for people
}

var goodbyeFields = record[Goodbye]{
	stringField("m", func(m *Goodbye) *string { return &m.Reason }),
}

// Notice returns "goodbye".
func (*Goodbye) Notice() string { return "goodbye" }

func (m *Goodbye) size() int { return goodbyeFields.size(m) }

func (m *Goodbye) body(e *encoder) error { return goodbyeFields.body(e, m) }

func (m *Goodbye) decode(d *decoder) error { return goodbyeFields.decode(d, m) }
