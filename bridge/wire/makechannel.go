package wire

// MakeChannel is the operation "channel": it makes a channel, or opens the one that is just like it. A ChannelReply
// answers it.
type MakeChannel struct {
	Name     string // channel name
	Pool     uint64 // pool id
	Mode     string // empty: "broadcast"
	Capacity uint64 // frames that it keeps
	Full     string // empty: "block"
}

var makeChannelFields = record[MakeChannel]{
	stringField("nm", func(m *MakeChannel) *string { return &m.Name }),
	uintField("pl", func(m *MakeChannel) *uint64 { return &m.Pool }),
	stringField("md", func(m *MakeChannel) *string { return &m.Mode }).maybe(),
	uintField("cp", func(m *MakeChannel) *uint64 { return &m.Capacity }),
	stringField("fl", func(m *MakeChannel) *string { return &m.Full }).maybe(),
}

// Op returns "channel".
func (*MakeChannel) Op() string { return "channel" }

func (m *MakeChannel) size() int { return makeChannelFields.size(m) }

func (m *MakeChannel) body(e *encoder) error { return makeChannelFields.body(e, m) }

func (m *MakeChannel) decode(d *decoder) error { return makeChannelFields.decode(d, m) }

// ChannelReply answers MakeChannel and Find.
type ChannelReply struct {
	Channel Channel
}

var channelReplyFields = record[ChannelReply]{
	structField("c", func(m *ChannelReply) *Channel { return &m.Channel }, channelFields),
}

func (*ChannelReply) reply() {}

func (m *ChannelReply) size() int { return channelReplyFields.size(m) }

func (m *ChannelReply) body(e *encoder) error { return channelReplyFields.body(e, m) }

func (m *ChannelReply) decode(d *decoder) error { return channelReplyFields.decode(d, m) }
