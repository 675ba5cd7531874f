package wire

// Lease describes a lease, its buffer and its block.
type Lease struct {
	ID         uint64   // never reused within an epoch
	Buffer     uint64   // buffer id, never reused within an epoch
	Generation uint64   // generation of the block at this use
	Write      bool     // a write lease
	Pool       uint64   // pool id
	Block      uint64   // block id, never reused within an epoch
	BlockBytes uint64   // bytes of the block
	Bytes      uint64   // bytes of the buffer, which starts at the block's first byte
	Tensor     Tensor   // what it holds
	Export     *Export  // how to map the block; nil: the session has it already
	Wait       []Ticket // what must be reached before the memory is used
	Event      []byte   // an interprocess event that stands for the content being complete
	EventOnly  bool     // no ticket does: it must be waited for
}

var leaseFields = record[Lease]{
	uintField("id", func(m *Lease) *uint64 { return &m.ID }),
	uintField("bf", func(m *Lease) *uint64 { return &m.Buffer }),
	uintField("ge", func(m *Lease) *uint64 { return &m.Generation }),
	boolField("wr", func(m *Lease) *bool { return &m.Write }).maybe(),
	uintField("pl", func(m *Lease) *uint64 { return &m.Pool }),
	uintField("bl", func(m *Lease) *uint64 { return &m.Block }),
	uintField("bs", func(m *Lease) *uint64 { return &m.BlockBytes }),
	uintField("n", func(m *Lease) *uint64 { return &m.Bytes }).maybe(),
	structField("t", func(m *Lease) *Tensor { return &m.Tensor }, tensorFields),
	pointerField("x", func(m *Lease) **Export { return &m.Export }, exportFields),
	structsField("wt", func(m *Lease) *[]Ticket { return &m.Wait }, ticketFields).maybe(),
	binaryField("ev", func(m *Lease) *[]byte { return &m.Event }).maybe(),
	boolField("eo", func(m *Lease) *bool { return &m.EventOnly }).maybe(),
}
