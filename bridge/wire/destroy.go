package wire

// Destroy ends a pool. An EmptyReply answers it.
type Destroy struct {
	Pool uint64 // pool id
}

var destroyFields = record[Destroy]{
	uintField("pl", func(m *Destroy) *uint64 { return &m.Pool }),
}

// Op returns "destroy".
func (*Destroy) Op() string { return "destroy" }

func (m *Destroy) size() int { return destroyFields.size(m) }

func (m *Destroy) body(e *encoder) error { return destroyFields.body(e, m) }

func (m *Destroy) decode(d *decoder) error { return destroyFields.decode(d, m) }

// EmptyReply says that a request succeeded: Destroy, Publish, Unpublish, Release, Cancel, Dropped, Seal, Shut,
// Enter, Leave, Doubt.
type EmptyReply struct {
}

var emptyReplyFields = record[EmptyReply]{}

func (*EmptyReply) reply() {}

func (m *EmptyReply) size() int { return emptyReplyFields.size(m) }

func (m *EmptyReply) body(e *encoder) error { return emptyReplyFields.body(e, m) }

func (m *EmptyReply) decode(d *decoder) error { return emptyReplyFields.decode(d, m) }
