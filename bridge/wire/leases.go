package wire

// Lease describes a lease, its buffer and its block.
type Lease struct {
	ID         uint64  // never reused within an epoch
	Buffer     uint64  // buffer id, never reused within an epoch
	Generation uint64  // generation of the block at this use
	Write      bool    // a write lease
	Pool       uint64  // pool id
	Block      uint64  // block id, never reused within an epoch
	BlockBytes uint64  // bytes of the block
	Bytes      uint64  // bytes of the buffer, which starts at the block's first byte
	Tensor     Tensor  // what it holds
	Export     *Export // how to map the block; nil: the session has it already
	Wait       []Fence // what must be reached before the memory is used
	Event      []byte  // an interprocess event that stands for the content being complete
	EventOnly  bool    // no fence does: it must be waited for
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
	structsField("wt", func(m *Lease) *[]Fence { return &m.Wait }, fenceFields).maybe(),
	binaryField("ev", func(m *Lease) *[]byte { return &m.Event }).maybe(),
	boolField("eo", func(m *Lease) *bool { return &m.EventOnly }).maybe(),
}

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

func (m *Alloc) fields() fields { return allocFields.of(m) }

// LeaseReply answers Alloc, Get and Borrow.
type LeaseReply struct {
	Lease Lease // the lease granted
}

var leaseReplyFields = record[LeaseReply]{
	structField("l", func(m *LeaseReply) *Lease { return &m.Lease }, leaseFields),
}

func (*LeaseReply) reply() {}

func (m *LeaseReply) fields() fields { return leaseReplyFields.of(m) }

// Get asks for a lease on a named buffer. A LeaseReply answers it.
type Get struct {
	Name  string // buffer name
	Write bool   // for a write lease
	Wait  uint64 // milliseconds to wait
}

var getFields = record[Get]{
	stringField("nm", func(m *Get) *string { return &m.Name }),
	boolField("wr", func(m *Get) *bool { return &m.Write }).maybe(),
	uintField("w", func(m *Get) *uint64 { return &m.Wait }).maybe(),
}

// Op returns "get".
func (*Get) Op() string { return "get" }

func (m *Get) fields() fields { return getFields.of(m) }

// Borrow is the operation "lease": it asks for a lease on a buffer by its id. A LeaseReply answers it.
type Borrow struct {
	Buffer     uint64 // buffer id
	Generation uint64 // generation of its block
	Write      bool   // for a write lease
	Wait       uint64 // milliseconds to wait
}

var borrowFields = record[Borrow]{
	uintField("bf", func(m *Borrow) *uint64 { return &m.Buffer }),
	uintField("ge", func(m *Borrow) *uint64 { return &m.Generation }),
	boolField("wr", func(m *Borrow) *bool { return &m.Write }).maybe(),
	uintField("w", func(m *Borrow) *uint64 { return &m.Wait }).maybe(),
}

// Op returns "lease".
func (*Borrow) Op() string { return "lease" }

func (m *Borrow) fields() fields { return borrowFields.of(m) }

// Publish names the buffer of a write lease, whose content is complete. An EmptyReply answers it.
type Publish struct {
	Lease   uint64  // write lease
	Name    string  // buffer name
	Tensor  *Tensor // a new description of the content; nil: as allocated
	Keep    bool    // keep the name when the session ends
	Replace bool    // replace an existing name of the same owner
	Ready   *Fence  // when the content is complete; nil: now, or when the event says so
	Event   []byte  // an interprocess event that stands for the same
}

var publishFields = record[Publish]{
	uintField("l", func(m *Publish) *uint64 { return &m.Lease }),
	stringField("nm", func(m *Publish) *string { return &m.Name }),
	pointerField("t", func(m *Publish) **Tensor { return &m.Tensor }, tensorFields),
	boolField("kp", func(m *Publish) *bool { return &m.Keep }).maybe(),
	boolField("rp", func(m *Publish) *bool { return &m.Replace }).maybe(),
	pointerField("rt", func(m *Publish) **Fence { return &m.Ready }, fenceFields),
	binaryField("ev", func(m *Publish) *[]byte { return &m.Event }).maybe(),
}

// Op returns "publish".
func (*Publish) Op() string { return "publish" }

func (m *Publish) fields() fields { return publishFields.of(m) }

// Unpublish takes a name away. An EmptyReply answers it.
type Unpublish struct {
	Name string // buffer name
}

var unpublishFields = record[Unpublish]{
	stringField("nm", func(m *Unpublish) *string { return &m.Name }),
}

// Op returns "unpublish".
func (*Unpublish) Op() string { return "unpublish" }

func (m *Unpublish) fields() fields { return unpublishFields.of(m) }

// Release ends a lease, or several in the same way: as many of them as can be ended, whatever becomes of the others. It is
// usually sent without a reply; otherwise an EmptyReply answers it.
type Release struct {
	Lease  uint64   // lease id
	Failed bool     // what was written is incomplete; a frame of a queue that is not settled goes back to it
	Done   []Fence  // when the work that used the lease is done; empty: now
	Also   []uint64 // further leases
}

var releaseFields = record[Release]{
	uintField("l", func(m *Release) *uint64 { return &m.Lease }),
	boolField("fl", func(m *Release) *bool { return &m.Failed }).maybe(),
	structsField("dt", func(m *Release) *[]Fence { return &m.Done }, fenceFields).maybe(),
	uintsField("al", func(m *Release) *[]uint64 { return &m.Also }).maybe(),
}

// Op returns "release".
func (*Release) Op() string { return "release" }

func (m *Release) fields() fields { return releaseFields.of(m) }

// Dropped says which mappings the client has given up. It is usually sent without a reply; otherwise an EmptyReply answers it.
type Dropped struct {
	Blocks []uint64 // block ids
}

var droppedFields = record[Dropped]{
	uintsField("bl", func(m *Dropped) *[]uint64 { return &m.Blocks }),
}

// Op returns "dropped".
func (*Dropped) Op() string { return "dropped" }

func (m *Dropped) fields() fields { return droppedFields.of(m) }

// Recall asks the client to unmap blocks when no lease needs them, and to send Dropped then.
type Recall struct {
	Blocks []uint64 // block ids
}

var recallFields = record[Recall]{
	uintsField("bl", func(m *Recall) *[]uint64 { return &m.Blocks }),
}

// Notice returns "recall".
func (*Recall) Notice() string { return "recall" }

func (m *Recall) fields() fields { return recallFields.of(m) }

// Failed says that buffers which the session has leased will never be complete: the process that wrote them died.
type Failed struct {
	Buffers []uint64 // buffer ids
}

var failedFields = record[Failed]{
	uintsField("bf", func(m *Failed) *[]uint64 { return &m.Buffers }),
}

// Notice returns "failed".
func (*Failed) Notice() string { return "failed" }

func (m *Failed) fields() fields { return failedFields.of(m) }

// Tensor describes what a buffer holds. The element at index i lies Offset + itemsize·Σ i·stride bytes into the buffer.
type Tensor struct {
	DType   string   // element type: "bool", "int8" … "complex128"
	Shape   []uint64 // in elements; empty: a scalar
	Strides []int64  // in elements, one for each dimension; empty: C-contiguous
	Offset  uint64   // bytes from the start of the buffer to element [0, …, 0]
}

var tensorFields = record[Tensor]{
	stringField("dt", func(m *Tensor) *string { return &m.DType }),
	uintsField("sh", func(m *Tensor) *[]uint64 { return &m.Shape }).maybe(),
	intsField("st", func(m *Tensor) *[]int64 { return &m.Strides }).maybe(),
	uintField("of", func(m *Tensor) *uint64 { return &m.Offset }).maybe(),
}

// Export is how to map a pool or a block.
type Export struct {
	Data []byte // what the kind defines
	FDs  uint64 // how many of the packet's file descriptors belong to it
}

var exportFields = record[Export]{
	binaryField("d", func(m *Export) *[]byte { return &m.Data }).maybe(),
	uintField("f", func(m *Export) *uint64 { return &m.FDs }).maybe(),
}
