package wire

// Working says that a request takes long, and that the service is carrying it out.
type Working struct {
	Request uint64 // request number; 0: one that all others of the session wait behind
}

var workingFields = record[Working]{
	uintField("rq", func(m *Working) *uint64 { return &m.Request }).maybe(),
}

// Notice returns "working".
func (*Working) Notice() string { return "working" }

func (m *Working) size() int { return workingFields.size(m) }

func (m *Working) body(e *encoder) error { return workingFields.body(e, m) }

func (m *Working) decode(d *decoder) error { return workingFields.decode(d, m) }
