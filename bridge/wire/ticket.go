package wire

// Ticket names a moment in somebody's work: it is reached when a word of a timeline is Value or more.
type Ticket struct {
	Timeline uint64 // timeline id
	Word     uint64 // index of the word
	Value    uint64 // at least 1
}

var ticketFields = record[Ticket]{
	uintField("tl", func(m *Ticket) *uint64 { return &m.Timeline }),
	uintField("wd", func(m *Ticket) *uint64 { return &m.Word }),
	uintField("v", func(m *Ticket) *uint64 { return &m.Value }),
}
