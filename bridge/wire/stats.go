package wire

// Stats is what a service holds.
type Stats struct {
	Sessions uint64      // open sessions
	Leases   uint64      // live leases
	Buffers  uint64      // live buffers
	Names    uint64      // published names
	Pools    []PoolStats // the pools that the asking session may use or destroy
}

var statsFields = record[Stats]{
	uintField("ss", func(m *Stats) *uint64 { return &m.Sessions }),
	uintField("ls", func(m *Stats) *uint64 { return &m.Leases }),
	uintField("bf", func(m *Stats) *uint64 { return &m.Buffers }),
	uintField("nm", func(m *Stats) *uint64 { return &m.Names }),
	structsField("p", func(m *Stats) *[]PoolStats { return &m.Pools }, poolStatsFields).maybe(),
}

// StatsRequest is the operation "stats".
type StatsRequest struct {
}

var statsRequestFields = record[StatsRequest]{}

// Op returns "stats".
func (*StatsRequest) Op() string { return "stats" }

func (m *StatsRequest) fields() fields { return statsRequestFields.of(m) }

// StatsReply answers StatsRequest.
type StatsReply struct {
	Stats Stats // what the service holds
}

var statsReplyFields = record[StatsReply]{
	structField("s", func(m *StatsReply) *Stats { return &m.Stats }, statsFields),
}

func (*StatsReply) reply() {}

func (m *StatsReply) fields() fields { return statsReplyFields.of(m) }

// PoolStats is what a pool holds, in bytes but for Blocks. Reserved = Leased + Cached + Held at all times.
type PoolStats struct {
	Pool     Pool   // without its export
	Reserved uint64 // all blocks
	Leased   uint64 // blocks in use
	Used     uint64 // the buffers in them
	Cached   uint64 // blocks free for use
	Held     uint64 // free blocks that are being recalled or wait for a process to end
	Blocks   uint64 // number of blocks
	Session  uint64 // what counts for the session that asks
	User     uint64 // what counts for its user
}

var poolStatsFields = record[PoolStats]{
	structField("p", func(m *PoolStats) *Pool { return &m.Pool }, poolFields),
	uintField("rs", func(m *PoolStats) *uint64 { return &m.Reserved }).maybe(),
	uintField("ld", func(m *PoolStats) *uint64 { return &m.Leased }).maybe(),
	uintField("us", func(m *PoolStats) *uint64 { return &m.Used }).maybe(),
	uintField("ca", func(m *PoolStats) *uint64 { return &m.Cached }).maybe(),
	uintField("rc", func(m *PoolStats) *uint64 { return &m.Held }).maybe(),
	uintField("nb", func(m *PoolStats) *uint64 { return &m.Blocks }).maybe(),
	uintField("cs", func(m *PoolStats) *uint64 { return &m.Session }).maybe(),
	uintField("cu", func(m *PoolStats) *uint64 { return &m.User }).maybe(),
}
