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
