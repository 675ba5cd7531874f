package wire

// Join asks to take part in a channel whose frames go through shared memory. A JoinReply answers it. The member takes part once it
// has sent Enter.
type Join struct {
	Channel uint64 // channel id
	Role    string // "producer" or "consumer"
	Oldest  bool   // a consumer of a broadcast begins with the oldest frame kept, not with the newest
	Full    string // what happens when this consumer of a broadcast is slow; empty: as the channel has it
}

var joinFields = record[Join]{
	uintField("ch", func(m *Join) *uint64 { return &m.Channel }),
	stringField("ro", func(m *Join) *string { return &m.Role }),
	boolField("ol", func(m *Join) *bool { return &m.Oldest }).maybe(),
	stringField("fl", func(m *Join) *string { return &m.Full }).maybe(),
}

// Op returns "join".
func (*Join) Op() string { return "join" }

func (m *Join) size() int { return joinFields.size(m) }

func (m *Join) body(e *encoder) error { return joinFields.body(e, m) }

func (m *Join) decode(d *decoder) error { return joinFields.decode(d, m) }

// JoinReply answers Join.
type JoinReply struct {
	Slot   uint64 // of the roster
	Member uint64 // member id, never reused in the channel
	Export Export // three file descriptors: the roster, the sequencer, and the member's own file
}

var joinReplyFields = record[JoinReply]{
	uintField("sl", func(m *JoinReply) *uint64 { return &m.Slot }),
	uintField("mb", func(m *JoinReply) *uint64 { return &m.Member }),
	structField("x", func(m *JoinReply) *Export { return &m.Export }, exportFields),
}

func (*JoinReply) reply() {}

func (m *JoinReply) size() int { return joinReplyFields.size(m) }

func (m *JoinReply) body(e *encoder) error { return joinReplyFields.body(e, m) }

func (m *JoinReply) decode(d *decoder) error { return joinReplyFields.decode(d, m) }
