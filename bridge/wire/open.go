package wire

// Open asks for an existing pool. A PoolReply answers it.
type Open struct {
	Name string // pool name; empty: by id
	Pool uint64 // pool id; 0: by name
	Wait uint64 // milliseconds to wait for the name
}

var openFields = record[Open]{
	stringField("nm", func(m *Open) *string { return &m.Name }).maybe(),
	uintField("pl", func(m *Open) *uint64 { return &m.Pool }).maybe(),
	uintField("w", func(m *Open) *uint64 { return &m.Wait }).maybe(),
}

// Op returns "open".
func (*Open) Op() string { return "open" }

func (m *Open) size() int { return openFields.size(m) }

func (m *Open) body(e *encoder) error { return openFields.body(e, m) }

func (m *Open) decode(d *decoder) error { return openFields.decode(d, m) }
