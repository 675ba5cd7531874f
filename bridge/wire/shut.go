package wire

// Shut closes a channel: nothing more can be sent, and subscribers get an End after the last frame. An EmptyReply answers
// it.
type Shut struct {
	Channel uint64 // channel id
}

var shutFields = record[Shut]{
	uintField("ch", func(m *Shut) *uint64 { return &m.Channel }),
}

// Op returns "shut".
func (*Shut) Op() string { return "shut" }

func (m *Shut) size() int { return shutFields.size(m) }

func (m *Shut) body(e *encoder) error { return shutFields.body(e, m) }

func (m *Shut) decode(d *decoder) error { return shutFields.decode(d, m) }
