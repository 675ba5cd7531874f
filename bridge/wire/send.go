package wire

// Send puts the buffer of a write lease into a channel and ends the lease. Without a number its failure is told in a Lost.
type Send struct {
	Channel uint64            // channel id
	Lease   uint64            // write lease
	Tensor  *Tensor           // a new description of the content; nil: as allocated
	Meta    map[string]string // what the sender says about the frame
	Ready   *Ticket           // when the content is complete; nil: now
	Event   []byte            // an interprocess event that stands for the same
	Wait    uint64            // milliseconds to wait for room
}

var sendFields = record[Send]{
	uintField("ch", func(m *Send) *uint64 { return &m.Channel }),
	uintField("l", func(m *Send) *uint64 { return &m.Lease }),
	pointerField("t", func(m *Send) **Tensor { return &m.Tensor }, tensorFields),
	textsField("mt", func(m *Send) *map[string]string { return &m.Meta }).maybe(),
	pointerField("rt", func(m *Send) **Ticket { return &m.Ready }, ticketFields),
	binaryField("ev", func(m *Send) *[]byte { return &m.Event }).maybe(),
	uintField("w", func(m *Send) *uint64 { return &m.Wait }).maybe(),
}

// Op returns "send".
func (*Send) Op() string { return "send" }

func (m *Send) size() int { return sendFields.size(m) }

func (m *Send) body(e *encoder) error { return sendFields.body(e, m) }

func (m *Send) decode(d *decoder) error { return sendFields.decode(d, m) }

// SendReply answers Send.
type SendReply struct {
	Sequence uint64 // the frame's number in its channel, counted from 1
}

var sendReplyFields = record[SendReply]{
	uintField("sq", func(m *SendReply) *uint64 { return &m.Sequence }),
}

func (*SendReply) reply() {}

func (m *SendReply) size() int { return sendReplyFields.size(m) }

func (m *SendReply) body(e *encoder) error { return sendReplyFields.body(e, m) }

func (m *SendReply) decode(d *decoder) error { return sendReplyFields.decode(d, m) }
