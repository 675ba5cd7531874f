package wire

// Unpublish takes a name away. An EmptyReply answers it.
type Unpublish struct {
	Name string // buffer name
}

var unpublishFields = record[Unpublish]{
	stringField("nm", func(m *Unpublish) *string { return &m.Name }),
}

// Op returns "unpublish".
func (*Unpublish) Op() string { return "unpublish" }

func (m *Unpublish) size() int { return unpublishFields.size(m) }

func (m *Unpublish) body(e *encoder) error { return unpublishFields.body(e, m) }

func (m *Unpublish) decode(d *decoder) error { return unpublishFields.decode(d, m) }
