package wire

// Seal says that the session has mapped its timeline: from now on nobody else can map it to write. An EmptyReply answers
// it.
type Seal struct {
}

var sealFields = record[Seal]{}

// Op returns "seal".
func (*Seal) Op() string { return "seal" }

func (m *Seal) size() int { return sealFields.size(m) }

func (m *Seal) body(e *encoder) error { return sealFields.body(e, m) }

func (m *Seal) decode(d *decoder) error { return sealFields.decode(d, m) }
