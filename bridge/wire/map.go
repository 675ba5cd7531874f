package wire

// Map asks how to map a block that a frame of shared memory named. A MapReply answers it. The block counts as one whose export the
// session was sent: a Recall asks for it back.
type Map struct {
	Channel uint64 // channel id, in which the session is a consumer
	Block   uint64 // block id, in the channel's pool
}

var mapFields = record[Map]{
	uintField("ch", func(m *Map) *uint64 { return &m.Channel }),
	uintField("bl", func(m *Map) *uint64 { return &m.Block }),
}

// Op returns "map".
func (*Map) Op() string { return "map" }

func (m *Map) size() int { return mapFields.size(m) }

func (m *Map) body(e *encoder) error { return mapFields.body(e, m) }

func (m *Map) decode(d *decoder) error { return mapFields.decode(d, m) }

// MapReply answers Map.
type MapReply struct {
	Generation uint64 // of the block at this use
	BlockBytes uint64 // of the block
	Export     Export // how to map it
}

var mapReplyFields = record[MapReply]{
	uintField("ge", func(m *MapReply) *uint64 { return &m.Generation }),
	uintField("bs", func(m *MapReply) *uint64 { return &m.BlockBytes }),
	structField("x", func(m *MapReply) *Export { return &m.Export }, exportFields),
}

func (*MapReply) reply() {}

func (m *MapReply) size() int { return mapReplyFields.size(m) }

func (m *MapReply) body(e *encoder) error { return mapReplyFields.body(e, m) }

func (m *MapReply) decode(d *decoder) error { return mapReplyFields.decode(d, m) }
