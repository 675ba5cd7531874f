package wire

// Frame hands a subscriber a frame, or says in Failure why this one cannot be had.
type Frame struct {
	Subscription uint64            // subscription id
	Sequence     uint64            // the frame's number in its channel
	Time         uint64            // nanoseconds since 1970 when it was sent
	Meta         map[string]string // what the sender said about it
	Dropped      uint64            // frames that this subscriber has missed since the last
	Lease        *Lease            // a read lease; nil where Failure says why
	Failure      *Error
}

var frameFields = record[Frame]{
	uintField("sb", func(m *Frame) *uint64 { return &m.Subscription }),
	uintField("sq", func(m *Frame) *uint64 { return &m.Sequence }),
	uintField("ts", func(m *Frame) *uint64 { return &m.Time }),
	textsField("mt", func(m *Frame) *map[string]string { return &m.Meta }).maybe(),
	uintField("dr", func(m *Frame) *uint64 { return &m.Dropped }).maybe(),
	pointerField("l", func(m *Frame) **Lease { return &m.Lease }, leaseFields),
	pointerField("e", func(m *Frame) **Error { return &m.Failure }, errorFields),
}

// Notice returns "frame".
func (*Frame) Notice() string { return "frame" }

func (m *Frame) size() int { return frameFields.size(m) }

func (m *Frame) body(e *encoder) error { return frameFields.body(e, m) }

func (m *Frame) decode(d *decoder) error { return frameFields.decode(d, m) }
