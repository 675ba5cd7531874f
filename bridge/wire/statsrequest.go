package wire

// StatsRequest is the operation "stats".
type StatsRequest struct {
}

var statsRequestFields = record[StatsRequest]{}

// Op returns "stats".
func (*StatsRequest) Op() string { return "stats" }

func (m *StatsRequest) size() int { return statsRequestFields.size(m) }

func (m *StatsRequest) body(e *encoder) error { return statsRequestFields.body(e, m) }

func (m *StatsRequest) decode(d *decoder) error { return statsRequestFields.decode(d, m) }

// StatsReply answers StatsRequest.
type StatsReply struct {
	Stats Stats // what the service holds
}

var statsReplyFields = record[StatsReply]{
	structField("s", func(m *StatsReply) *Stats { return &m.Stats }, statsFields),
}

func (*StatsReply) reply() {}

func (m *StatsReply) size() int { return statsReplyFields.size(m) }

func (m *StatsReply) body(e *encoder) error { return statsReplyFields.body(e, m) }

func (m *StatsReply) decode(d *decoder) error { return statsReplyFields.decode(d, m) }
