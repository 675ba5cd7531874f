package wire

// Wanted says that memory of a pool is wanted: for a second, the client releases each lease that it keeps for its next allocation, and
// each block that a channel's shared memory gives back.
type Wanted struct {
	Pool uint64 // pool id
}

var wantedFields = record[Wanted]{
	uintField("pl", func(m *Wanted) *uint64 { return &m.Pool }),
}

// Notice returns "wanted".
func (*Wanted) Notice() string { return "wanted" }

func (m *Wanted) size() int { return wantedFields.size(m) }

func (m *Wanted) body(e *encoder) error { return wantedFields.body(e, m) }

func (m *Wanted) decode(d *decoder) error { return wantedFields.decode(d, m) }
