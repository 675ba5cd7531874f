package wire

// Ack settles the frame that a lease came with, or several in the same way: as many of them as can be settled, whatever
// becomes of the others. The leases live on. It is usually sent without a reply; otherwise an EmptyReply answers it.
type Ack struct {
	Lease uint64   // lease id
	Back  bool     // the frame goes back to its queue, for another subscriber
	Also  []uint64 // further leases
}

var ackFields = record[Ack]{
	uintField("l", func(m *Ack) *uint64 { return &m.Lease }),
	boolField("bk", func(m *Ack) *bool { return &m.Back }).maybe(),
	uintsField("al", func(m *Ack) *[]uint64 { return &m.Also }).maybe(),
}

// Op returns "ack".
func (*Ack) Op() string { return "ack" }

func (m *Ack) size() int { return ackFields.size(m) }

func (m *Ack) body(e *encoder) error { return ackFields.body(e, m) }

func (m *Ack) decode(d *decoder) error { return ackFields.decode(d, m) }
