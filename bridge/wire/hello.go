package wire

// Hello opens a session.
type Hello struct {
	Versions []uint64 // protocol versions that the client speaks
	Name     string   // the program's name, for people
	Features []string // what the client can do beyond the version
}

var helloFields = record[Hello]{
	uintsField("v", func(m *Hello) *[]uint64 { return &m.Versions }),
	stringField("nm", func(m *Hello) *string { return &m.Name }).maybe(),
	stringsField("ft", func(m *Hello) *[]string { return &m.Features }).maybe(),
}

// Op returns "hello".
func (*Hello) Op() string { return "hello" }

func (m *Hello) size() int { return helloFields.size(m) }

func (m *Hello) body(e *encoder) error { return helloFields.body(e, m) }

func (m *Hello) decode(d *decoder) error { return helloFields.decode(d, m) }

// Epoch identifies one life of the service.
type Epoch [16]byte

// HelloReply answers Hello.
type HelloReply struct {
	Version  uint64   // the version chosen
	Epoch    Epoch    // the service's epoch
	Session  uint64   // session id
	PID      uint64   // the service's process id, for people
	Features []string // features of both
}

var helloReplyFields = record[HelloReply]{
	uintField("v", func(m *HelloReply) *uint64 { return &m.Version }),
	epochField("ep", func(m *HelloReply) *Epoch { return &m.Epoch }),
	uintField("id", func(m *HelloReply) *uint64 { return &m.Session }),
	uintField("pid", func(m *HelloReply) *uint64 { return &m.PID }),
	stringsField("ft", func(m *HelloReply) *[]string { return &m.Features }).maybe(),
}

func (*HelloReply) reply() {}

func (m *HelloReply) size() int { return helloReplyFields.size(m) }

func (m *HelloReply) body(e *encoder) error { return helloReplyFields.body(e, m) }

func (m *HelloReply) decode(d *decoder) error { return helloReplyFields.decode(d, m) }
