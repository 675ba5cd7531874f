package wire

// Find asks for a channel by name. A ChannelReply answers it.
type Find struct {
	Name string // channel name
	Wait uint64 // milliseconds to wait for the name
}

var findFields = record[Find]{
	stringField("nm", func(m *Find) *string { return &m.Name }),
	uintField("w", func(m *Find) *uint64 { return &m.Wait }).maybe(),
}

// Op returns "find".
func (*Find) Op() string { return "find" }

func (m *Find) size() int { return findFields.size(m) }

func (m *Find) body(e *encoder) error { return findFields.body(e, m) }

func (m *Find) decode(d *decoder) error { return findFields.decode(d, m) }
