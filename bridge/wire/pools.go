package wire

// Pool describes a pool.
type Pool struct {
	ID              uint64  // never reused within an epoch
	Name            string  // as its creator chose it
	Kind            string  // "device", "vmm", "legacy", "pinned" or "host"
	Device          uint64  // device ordinal as the service sees it
	UUID            string  // device UUID, "GPU-…"; empty: no device
	MaxBytes        uint64  // most bytes that the pool's blocks may take
	MaxSessionBytes uint64  // most bytes that may count for one session in it; 0: no limit of its own
	MaxUserBytes    uint64  // most bytes that may count for one user in it; 0: no limit of its own
	Export          *Export // how to map it; in replies to create and open
}

var poolFields = record[Pool]{
	uintField("id", func(m *Pool) *uint64 { return &m.ID }),
	stringField("nm", func(m *Pool) *string { return &m.Name }),
	stringField("k", func(m *Pool) *string { return &m.Kind }),
	uintField("do", func(m *Pool) *uint64 { return &m.Device }).maybe(),
	stringField("du", func(m *Pool) *string { return &m.UUID }).maybe(),
	uintField("mx", func(m *Pool) *uint64 { return &m.MaxBytes }),
	uintField("sx", func(m *Pool) *uint64 { return &m.MaxSessionBytes }).maybe(),
	uintField("ux", func(m *Pool) *uint64 { return &m.MaxUserBytes }).maybe(),
	pointerField("x", func(m *Pool) **Export { return &m.Export }, exportFields),
}

// Create makes a pool. A PoolReply answers it.
type Create struct {
	Name            string   // pool name
	Kind            string   // "device", "vmm", "legacy", "pinned" or "host"
	Device          string   // ordinal or UUID; empty: the first
	MaxBytes        uint64   // most bytes of the pool
	MaxSessionBytes uint64   // most bytes of a session; 0: no limit of its own
	MaxUserBytes    uint64   // most bytes of a user; 0: no limit of its own
	UIDs            []uint64 // users that may use it; without GIDs too: the creator's user
	GIDs            []uint64 // groups that may use it
	Ensure          bool     // open the pool of that name, if there is one that is just like it
}

var createFields = record[Create]{
	stringField("nm", func(m *Create) *string { return &m.Name }),
	stringField("k", func(m *Create) *string { return &m.Kind }),
	stringField("dv", func(m *Create) *string { return &m.Device }).maybe(),
	uintField("mx", func(m *Create) *uint64 { return &m.MaxBytes }),
	uintField("sx", func(m *Create) *uint64 { return &m.MaxSessionBytes }).maybe(),
	uintField("ux", func(m *Create) *uint64 { return &m.MaxUserBytes }).maybe(),
	uintsField("ui", func(m *Create) *[]uint64 { return &m.UIDs }).maybe(),
	uintsField("gi", func(m *Create) *[]uint64 { return &m.GIDs }).maybe(),
	boolField("en", func(m *Create) *bool { return &m.Ensure }).maybe(),
}

// Op returns "create".
func (*Create) Op() string { return "create" }

func (m *Create) fields() fields { return createFields.of(m) }

// PoolReply answers Create and Open.
type PoolReply struct {
	Pool Pool // with its export
}

var poolReplyFields = record[PoolReply]{
	structField("p", func(m *PoolReply) *Pool { return &m.Pool }, poolFields),
}

func (*PoolReply) reply() {}

func (m *PoolReply) fields() fields { return poolReplyFields.of(m) }

// Open asks for an existing pool. A PoolReply answers it.
type Open struct {
	Name string // pool name; empty: by id
	Pool uint64 // pool id; 0: by name
	Wait uint64 // milliseconds to wait for the name
}

var openFields = record[Open]{
	stringField("nm", func(m *Open) *string { return &m.Name }).maybe(),
	uintField("pl", func(m *Open) *uint64 { return &m.Pool }).maybe(),
	uintField("w", func(m *Open) *uint64 { return &m.Wait }).maybe(),
}

// Op returns "open".
func (*Open) Op() string { return "open" }

func (m *Open) fields() fields { return openFields.of(m) }

// Destroy ends a pool. An EmptyReply answers it.
type Destroy struct {
	Pool uint64 // pool id
}

var destroyFields = record[Destroy]{
	uintField("pl", func(m *Destroy) *uint64 { return &m.Pool }),
}

// Op returns "destroy".
func (*Destroy) Op() string { return "destroy" }

func (m *Destroy) fields() fields { return destroyFields.of(m) }

// EmptyReply says that a request succeeded: Destroy, Publish, Unpublish, Release, Cancel, Dropped, Seal, CloseChannel,
// Enter, Leave, Doubt.
type EmptyReply struct {
}

var emptyReplyFields = record[EmptyReply]{}

func (*EmptyReply) reply() {}

func (m *EmptyReply) fields() fields { return emptyReplyFields.of(m) }

// Trim gives unused blocks back to the driver.
type Trim struct {
	Pool uint64 // pool id
	Keep uint64 // bytes of unused blocks to keep
}

var trimFields = record[Trim]{
	uintField("pl", func(m *Trim) *uint64 { return &m.Pool }),
	uintField("n", func(m *Trim) *uint64 { return &m.Keep }).maybe(),
}

// Op returns "trim".
func (*Trim) Op() string { return "trim" }

func (m *Trim) fields() fields { return trimFields.of(m) }

// TrimReply answers Trim.
type TrimReply struct {
	Bytes uint64 // bytes given back
}

var trimReplyFields = record[TrimReply]{
	uintField("n", func(m *TrimReply) *uint64 { return &m.Bytes }),
}

func (*TrimReply) reply() {}

func (m *TrimReply) fields() fields { return trimReplyFields.of(m) }
