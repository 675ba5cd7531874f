package wire

// Export is how to map a pool or a block.
type Export struct {
	Data []byte // what the kind defines
	FDs  uint64 // how many of the packet's file descriptors belong to it
}

var exportFields = record[Export]{
	binaryField("d", func(m *Export) *[]byte { return &m.Data }).maybe(),
	uintField("f", func(m *Export) *uint64 { return &m.FDs }).maybe(),
}
