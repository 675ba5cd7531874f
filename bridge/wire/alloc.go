package wire

// Alloc asks for a new buffer with a write lease. A LeaseReply answers it.
type Alloc struct {
	Pool   uint64 // pool id
	Tensor Tensor // what the buffer is to hold
	Wait   uint64 // milliseconds to wait for room
}

var allocFields = record[Alloc]{
	uintField("pl", func(m *Alloc) *uint64 { return &m.Pool }),
	structField("t", func(m *Alloc) *Tensor { return &m.Tensor }, tensorFields),
	uintField("w", func(m *Alloc) *uint64 { return &m.Wait }).maybe(),
}

// Op returns "alloc".
func (*Alloc) Op() string { return "alloc" }

func (m *Alloc) size() int { return allocFields.size(m) }

func (m *Alloc) body(e *encoder) error { return allocFields.body(e, m) }

func (m *Alloc) decode(d *decoder) error { return allocFields.decode(d, m) }

// LeaseReply answers Alloc, Get and Borrow.
type LeaseReply struct {
	Lease Lease // the lease granted
}

var leaseReplyFields = record[LeaseReply]{
	structField("l", func(m *LeaseReply) *Lease { return &m.Lease }, leaseFields),
}

func (*LeaseReply) reply() {}

func (m *LeaseReply) size() int { return leaseReplyFields.size(m) }

func (m *LeaseReply) body(e *encoder) error { return leaseReplyFields.body(e, m) }

func (m *LeaseReply) decode(d *decoder) error { return leaseReplyFields.decode(d, m) }
