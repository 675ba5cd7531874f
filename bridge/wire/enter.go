package wire

// Enter says that a member has mapped the files of its JoinReply. The member takes part once an EmptyReply has answered it.
type Enter struct {
	Channel uint64 // channel id
	Member  uint64 // member id
}

var enterFields = record[Enter]{
	uintField("ch", func(m *Enter) *uint64 { return &m.Channel }),
	uintField("mb", func(m *Enter) *uint64 { return &m.Member }),
}

// Op returns "enter".
func (*Enter) Op() string { return "enter" }

func (m *Enter) size() int { return enterFields.size(m) }

func (m *Enter) body(e *encoder) error { return enterFields.body(e, m) }

func (m *Enter) decode(d *decoder) error { return enterFields.decode(d, m) }
