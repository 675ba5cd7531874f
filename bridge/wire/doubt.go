package wire

// Doubt says that what a producer wrote about a frame contradicts itself. It is usually sent without a reply; otherwise an EmptyReply
// answers it.
type Doubt struct {
	Channel  uint64 // channel id
	Member   uint64 // member id of the consumer that found it
	Sequence uint64 // number of the frame
}

var doubtFields = record[Doubt]{
	uintField("ch", func(m *Doubt) *uint64 { return &m.Channel }),
	uintField("mb", func(m *Doubt) *uint64 { return &m.Member }),
	uintField("sq", func(m *Doubt) *uint64 { return &m.Sequence }),
}

// Op returns "doubt".
func (*Doubt) Op() string { return "doubt" }

func (m *Doubt) size() int { return doubtFields.size(m) }

func (m *Doubt) body(e *encoder) error { return doubtFields.body(e, m) }

func (m *Doubt) decode(d *decoder) error { return doubtFields.decode(d, m) }
