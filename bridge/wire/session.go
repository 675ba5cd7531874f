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

func (m *Hello) fields() fields { return helloFields.of(m) }

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

func (m *HelloReply) fields() fields { return helloReplyFields.of(m) }

// Goodbye says that the service is about to close the connection.
type Goodbye struct {
	Reason Error
}

// Notice returns "goodbye".
func (*Goodbye) Notice() string { return "goodbye" }

func (m *Goodbye) fields() fields { return errorFields.of(&m.Reason) }

// Cancel ends the wait of another request. It is usually sent without a reply; otherwise an EmptyReply answers it.
type Cancel struct {
	Request uint64 // number of the waiting request
}

var cancelFields = record[Cancel]{
	uintField("rq", func(m *Cancel) *uint64 { return &m.Request }),
}

// Op returns "cancel".
func (*Cancel) Op() string { return "cancel" }

func (m *Cancel) fields() fields { return cancelFields.of(m) }

// Working says that a request takes long, and that the service is carrying it out.
type Working struct {
	Request uint64 // request number; 0: one that all others of the session wait behind
}

var workingFields = record[Working]{
	uintField("rq", func(m *Working) *uint64 { return &m.Request }).maybe(),
}

// Notice returns "working".
func (*Working) Notice() string { return "working" }

func (m *Working) fields() fields { return workingFields.of(m) }
