package wire

// Leave says that a consumer takes no frames any more. It is usually sent without a reply; otherwise an EmptyReply answers it.
type Leave struct {
	Channel uint64 // channel id
	Member  uint64 // member id
}

var leaveFields = record[Leave]{
	uintField("ch", func(m *Leave) *uint64 { return &m.Channel }),
	uintField("mb", func(m *Leave) *uint64 { return &m.Member }),
}

// Op returns "leave".
func (*Leave) Op() string { return "leave" }

func (m *Leave) size() int { return leaveFields.size(m) }

func (m *Leave) body(e *encoder) error { return leaveFields.body(e, m) }

func (m *Leave) decode(d *decoder) error { return leaveFields.decode(d, m) }
