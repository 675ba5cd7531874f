package wire

// Member gives the file of a member to the members of the other role that the session has in a channel.
type Member struct {
	Channel uint64 // channel id
	Role    string // of the member: "producer" or "consumer"
	Slot    uint64 // of the roster
	Member  uint64 // member id
	Export  Export // one file descriptor: the member's file
}

var memberFields = record[Member]{
	uintField("ch", func(m *Member) *uint64 { return &m.Channel }),
	stringField("ro", func(m *Member) *string { return &m.Role }),
	uintField("sl", func(m *Member) *uint64 { return &m.Slot }),
	uintField("mb", func(m *Member) *uint64 { return &m.Member }),
	structField("x", func(m *Member) *Export { return &m.Export }, exportFields),
}

// Notice returns "member".
func (*Member) Notice() string { return "member" }

func (m *Member) size() int { return memberFields.size(m) }

func (m *Member) body(e *encoder) error { return memberFields.body(e, m) }

func (m *Member) decode(d *decoder) error { return memberFields.decode(d, m) }
