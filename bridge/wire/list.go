package wire

// List is the operation "list": it asks for a page of what the service has. A ListReply answers it.
type List struct {
	What  string // "sessions", "channels", "names" or "buffers"
	After string // Next of the page before; empty: the first page
	Most  uint64 // entries; 0: MaxList
}

var listFields = record[List]{
	stringField("wt", func(m *List) *string { return &m.What }),
	stringField("af", func(m *List) *string { return &m.After }).maybe(),
	uintField("n", func(m *List) *uint64 { return &m.Most }).maybe(),
}

// Op returns "list".
func (*List) Op() string { return "list" }

func (m *List) fields() fields { return listFields.of(m) }

// ListReply answers List. It has the entries that were asked for.
type ListReply struct {
	Sessions []SessionEntry
	Channels []ChannelEntry
	Names    []NameEntry
	Buffers  []BufferEntry
	Next     string // where the next page begins; empty: this is the last
}

var listReplyFields = record[ListReply]{
	structsField("ss", func(m *ListReply) *[]SessionEntry { return &m.Sessions }, sessionEntryFields).maybe(),
	structsField("cs", func(m *ListReply) *[]ChannelEntry { return &m.Channels }, channelEntryFields).maybe(),
	structsField("ns", func(m *ListReply) *[]NameEntry { return &m.Names }, nameEntryFields).maybe(),
	structsField("bs", func(m *ListReply) *[]BufferEntry { return &m.Buffers }, bufferEntryFields).maybe(),
	stringField("nx", func(m *ListReply) *string { return &m.Next }).maybe(),
}

func (*ListReply) reply() {}

func (m *ListReply) fields() fields { return listReplyFields.of(m) }

// SessionEntry describes a session.
type SessionEntry struct {
	ID      uint64
	UID     uint64 // its user
	PID     uint64 // its process, for people
	Program string // as the client calls itself, for people
	Began   uint64 // nanoseconds since 1970
	Leases  uint64
	Blocks  uint64 // that it was sent the export of and has not dropped
	Members uint64 // of channels
	Bytes   uint64 // that count for it in pools
}

var sessionEntryFields = record[SessionEntry]{
	uintField("id", func(m *SessionEntry) *uint64 { return &m.ID }),
	uintField("ui", func(m *SessionEntry) *uint64 { return &m.UID }),
	uintField("pd", func(m *SessionEntry) *uint64 { return &m.PID }),
	stringField("nm", func(m *SessionEntry) *string { return &m.Program }).maybe(),
	uintField("bg", func(m *SessionEntry) *uint64 { return &m.Began }),
	uintField("ls", func(m *SessionEntry) *uint64 { return &m.Leases }).maybe(),
	uintField("bk", func(m *SessionEntry) *uint64 { return &m.Blocks }).maybe(),
	uintField("mb", func(m *SessionEntry) *uint64 { return &m.Members }).maybe(),
	uintField("n", func(m *SessionEntry) *uint64 { return &m.Bytes }).maybe(),
}

// ChannelEntry describes a channel.
type ChannelEntry struct {
	Channel   Channel
	UID       uint64 // of the user who made it
	Producers uint64
	Consumers uint64
	Closed    bool
	Published uint64 // frames so far
	Waiting   uint64 // of them, those that the slowest consumer of a broadcast has not taken, or that nobody has acknowledged in a queue
	Slowest   uint64 // session of that consumer
}

var channelEntryFields = record[ChannelEntry]{
	structField("c", func(m *ChannelEntry) *Channel { return &m.Channel }, channelFields),
	uintField("ui", func(m *ChannelEntry) *uint64 { return &m.UID }),
	uintField("pr", func(m *ChannelEntry) *uint64 { return &m.Producers }).maybe(),
	uintField("cs", func(m *ChannelEntry) *uint64 { return &m.Consumers }).maybe(),
	boolField("sh", func(m *ChannelEntry) *bool { return &m.Closed }).maybe(),
	uintField("sq", func(m *ChannelEntry) *uint64 { return &m.Published }).maybe(),
	uintField("wt", func(m *ChannelEntry) *uint64 { return &m.Waiting }).maybe(),
	uintField("sl", func(m *ChannelEntry) *uint64 { return &m.Slowest }).maybe(),
}

// NameEntry describes a name and the buffer that is published under it.
type NameEntry struct {
	Name    string
	Buffer  uint64
	Pool    uint64
	Bytes   uint64
	Tensor  Tensor
	UID     uint64 // of the user who published it
	Session uint64 // whose end removes it; 0: none, it is kept
}

var nameEntryFields = record[NameEntry]{
	stringField("nm", func(m *NameEntry) *string { return &m.Name }),
	uintField("bf", func(m *NameEntry) *uint64 { return &m.Buffer }),
	uintField("pl", func(m *NameEntry) *uint64 { return &m.Pool }),
	uintField("n", func(m *NameEntry) *uint64 { return &m.Bytes }),
	structField("t", func(m *NameEntry) *Tensor { return &m.Tensor }, tensorFields),
	uintField("ui", func(m *NameEntry) *uint64 { return &m.UID }),
	uintField("ss", func(m *NameEntry) *uint64 { return &m.Session }).maybe(),
}

// BufferEntry describes a buffer and what holds it.
type BufferEntry struct {
	ID         uint64
	Generation uint64
	Pool       uint64
	Bytes      uint64
	BlockBytes uint64
	Tensor     Tensor
	Writer     uint64   // session with the write lease; 0: none
	Readers    []uint64 // sessions with read leases, at most MaxReaders of them
	Reads      uint64   // read leases
	Names      uint64   // that it is published under
	InChannel  bool     // a channel has it whose producer left
}

var bufferEntryFields = record[BufferEntry]{
	uintField("id", func(m *BufferEntry) *uint64 { return &m.ID }),
	uintField("ge", func(m *BufferEntry) *uint64 { return &m.Generation }),
	uintField("pl", func(m *BufferEntry) *uint64 { return &m.Pool }),
	uintField("n", func(m *BufferEntry) *uint64 { return &m.Bytes }),
	uintField("bs", func(m *BufferEntry) *uint64 { return &m.BlockBytes }),
	structField("t", func(m *BufferEntry) *Tensor { return &m.Tensor }, tensorFields),
	uintField("wr", func(m *BufferEntry) *uint64 { return &m.Writer }).maybe(),
	uintsField("rd", func(m *BufferEntry) *[]uint64 { return &m.Readers }).maybe(),
	uintField("rs", func(m *BufferEntry) *uint64 { return &m.Reads }).maybe(),
	uintField("nn", func(m *BufferEntry) *uint64 { return &m.Names }).maybe(),
	boolField("ch", func(m *BufferEntry) *bool { return &m.InChannel }).maybe(),
}
