package wire

// Cancel ends the wait of another request. It is usually sent without a reply; otherwise an EmptyReply answers it.
type Cancel struct {
	Request uint64 // number of the waiting request
}

var cancelFields = record[Cancel]{
	uintField("rq", func(m *Cancel) *uint64 { return &m.Request }),
}

// Op returns "cancel".
func (*Cancel) Op() string { return "cancel" }

func (m *Cancel) size() int { return cancelFields.size(m) }

func (m *Cancel) body(e *encoder) error { return cancelFields.body(e, m) }

func (m *Cancel) decode(d *decoder) error { return cancelFields.decode(d, m) }
