package wire

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
