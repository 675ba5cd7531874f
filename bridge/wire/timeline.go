package wire

// Timeline asks for a timeline's page: the session's own, which is made on the first request, or another's that a
// ticket named.
type Timeline struct {
	Timeline uint64 // timeline id; 0: the session's own
}

var timelineFields = record[Timeline]{
	uintField("tl", func(m *Timeline) *uint64 { return &m.Timeline }).maybe(),
}

// Op returns "timeline".
func (*Timeline) Op() string { return "timeline" }

func (m *Timeline) size() int { return timelineFields.size(m) }

func (m *Timeline) body(e *encoder) error { return timelineFields.body(e, m) }

func (m *Timeline) decode(d *decoder) error { return timelineFields.decode(d, m) }

// TimelineReply answers Timeline.
type TimelineReply struct {
	Timeline uint64 // timeline id, never reused within an epoch
	Words    uint64 // how many words the page has
	Export   Export // one file descriptor: a memfd
}

var timelineReplyFields = record[TimelineReply]{
	uintField("tl", func(m *TimelineReply) *uint64 { return &m.Timeline }),
	uintField("nw", func(m *TimelineReply) *uint64 { return &m.Words }),
	structField("x", func(m *TimelineReply) *Export { return &m.Export }, exportFields),
}

func (*TimelineReply) reply() {}

func (m *TimelineReply) size() int { return timelineReplyFields.size(m) }

func (m *TimelineReply) body(e *encoder) error { return timelineReplyFields.body(e, m) }

func (m *TimelineReply) decode(d *decoder) error { return timelineReplyFields.decode(d, m) }
