package wire

// Fence names a moment in somebody's work: it is reached when a word of a timeline is Value or more.
type Fence struct {
	Timeline uint64 // timeline id
	Word     uint64 // index of the word
	Value    uint64 // at least 1
}

var fenceFields = record[Fence]{
	uintField("tl", func(m *Fence) *uint64 { return &m.Timeline }),
	uintField("wd", func(m *Fence) *uint64 { return &m.Word }),
	uintField("v", func(m *Fence) *uint64 { return &m.Value }),
}

// Timeline asks for a timeline's page: the session's own, which is made on the first request, or another's that a
// fence named.
type Timeline struct {
	Timeline uint64 // timeline id; 0: the session's own
}

var timelineFields = record[Timeline]{
	uintField("tl", func(m *Timeline) *uint64 { return &m.Timeline }).maybe(),
}

// Op returns "timeline".
func (*Timeline) Op() string { return "timeline" }

func (m *Timeline) fields() fields { return timelineFields.of(m) }

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

func (m *TimelineReply) fields() fields { return timelineReplyFields.of(m) }

// Seal says that the session has mapped its timeline: from now on nobody else can map it to write. An EmptyReply answers
// it.
type Seal struct {
}

var sealFields = record[Seal]{}

// Op returns "seal".
func (*Seal) Op() string { return "seal" }

func (m *Seal) fields() fields { return sealFields.of(m) }

// Forget says that no fence of these timelines will come again: the client may unmap them.
type Forget struct {
	Timelines []uint64 // timeline ids
}

var forgetFields = record[Forget]{
	uintsField("tl", func(m *Forget) *[]uint64 { return &m.Timelines }),
}

// Notice returns "forget".
func (*Forget) Notice() string { return "forget" }

func (m *Forget) fields() fields { return forgetFields.of(m) }
