package wire

// Subscribe asks for a channel's frames.
type Subscribe struct {
	Channel uint64 // channel id
	Credit  uint64 // frames that may be sent before more credit is given
	Oldest  bool   // begin with the oldest frame that is kept, not with the newest
	Full    string // what happens when this subscriber is slow; empty: as the channel has it
}

var subscribeFields = record[Subscribe]{
	uintField("ch", func(m *Subscribe) *uint64 { return &m.Channel }),
	uintField("cr", func(m *Subscribe) *uint64 { return &m.Credit }),
	boolField("ol", func(m *Subscribe) *bool { return &m.Oldest }).maybe(),
	stringField("fl", func(m *Subscribe) *string { return &m.Full }).maybe(),
}

// Op returns "subscribe".
func (*Subscribe) Op() string { return "subscribe" }

func (m *Subscribe) size() int { return subscribeFields.size(m) }

func (m *Subscribe) body(e *encoder) error { return subscribeFields.body(e, m) }

func (m *Subscribe) decode(d *decoder) error { return subscribeFields.decode(d, m) }

// SubscribeReply answers Subscribe.
type SubscribeReply struct {
	Subscription uint64 // never reused within an epoch
}

var subscribeReplyFields = record[SubscribeReply]{
	uintField("sb", func(m *SubscribeReply) *uint64 { return &m.Subscription }),
}

func (*SubscribeReply) reply() {}

func (m *SubscribeReply) size() int { return subscribeReplyFields.size(m) }

func (m *SubscribeReply) body(e *encoder) error { return subscribeReplyFields.body(e, m) }

func (m *SubscribeReply) decode(d *decoder) error { return subscribeReplyFields.decode(d, m) }
