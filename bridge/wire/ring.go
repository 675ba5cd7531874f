package wire

// Ring asks for a ring of shared memory, which can carry the session's packets from then on.
type Ring struct {
}

var ringFields = record[Ring]{}

// Op returns "ring".
func (*Ring) Op() string { return "ring" }

func (m *Ring) size() int { return ringFields.size(m) }

func (m *Ring) body(e *encoder) error { return ringFields.body(e, m) }

func (m *Ring) decode(d *decoder) error { return ringFields.decode(d, m) }

// RingReply answers Ring.
type RingReply struct {
	Size   uint64 // bytes of packets that each direction holds
	Export Export // two file descriptors: what the client reads from, and what it writes into
}

var ringReplyFields = record[RingReply]{
	uintField("sz", func(m *RingReply) *uint64 { return &m.Size }),
	structField("x", func(m *RingReply) *Export { return &m.Export }, exportFields),
}

func (*RingReply) reply() {}

func (m *RingReply) size() int { return ringReplyFields.size(m) }

func (m *RingReply) body(e *encoder) error { return ringReplyFields.body(e, m) }

func (m *RingReply) decode(d *decoder) error { return ringReplyFields.decode(d, m) }
