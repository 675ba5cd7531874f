package wire

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

func (m *Create) size() int { return createFields.size(m) }

func (m *Create) body(e *encoder) error { return createFields.body(e, m) }

func (m *Create) decode(d *decoder) error { return createFields.decode(d, m) }

// PoolReply answers Create and Open.
type PoolReply struct {
	Pool Pool // with its export
}

var poolReplyFields = record[PoolReply]{
	structField("p", func(m *PoolReply) *Pool { return &m.Pool }, poolFields),
}

func (*PoolReply) reply() {}

func (m *PoolReply) size() int { return poolReplyFields.size(m) }

func (m *PoolReply) body(e *encoder) error { return poolReplyFields.body(e, m) }

func (m *PoolReply) decode(d *decoder) error { return poolReplyFields.decode(d, m) }
