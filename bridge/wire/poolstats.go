package wire

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
