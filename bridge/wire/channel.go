package wire

// Channel describes a channel.
type Channel struct {
	ID       uint64 // never reused within an epoch
	Name     string
	Pool     uint64 // pool id, whose buffers it carries and whose access list holds
	Mode     string // "broadcast" or "queue"
	Capacity uint64 // frames that it keeps
	Full     string // what happens when it is full: "block", "drop-oldest", "latest" or "fail"
}

var channelFields = record[Channel]{
	uintField("id", func(m *Channel) *uint64 { return &m.ID }),
	stringField("nm", func(m *Channel) *string { return &m.Name }),
	uintField("pl", func(m *Channel) *uint64 { return &m.Pool }),
	stringField("md", func(m *Channel) *string { return &m.Mode }),
	uintField("cp", func(m *Channel) *uint64 { return &m.Capacity }),
	stringField("fl", func(m *Channel) *string { return &m.Full }),
}
