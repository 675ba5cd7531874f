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
