package mempool

// DType is the name of an element type. The names are those of NumPy and of the array API standard ("float32", …), and for types that NumPy
// lacks those of PyTorch and of ml_dtypes ("bfloat16", "float8_e4m3fn", …).
type DType string

// These are the element types that a tensor can have.
const (
	Bool       DType = "bool"
	Int8       DType = "int8"
	Int16      DType = "int16"
	Int32      DType = "int32"
	Int64      DType = "int64"
	Uint8      DType = "uint8"
	Uint16     DType = "uint16"
	Uint32     DType = "uint32"
	Uint64     DType = "uint64"
	Float16    DType = "float16"
	BFloat16   DType = "bfloat16"
	Float32    DType = "float32"
	Float64    DType = "float64"
	Complex64  DType = "complex64"
	Complex128 DType = "complex128"

	Float8E4M3FN   DType = "float8_e4m3fn"
	Float8E4M3FNUZ DType = "float8_e4m3fnuz"
	Float8E5M2     DType = "float8_e5m2"
	Float8E5M2FNUZ DType = "float8_e5m2fnuz"
	Float8E8M0FNU  DType = "float8_e8m0fnu"

	Float4E2M1FNx2 DType = "float4_e2m1fn_x2" // two floats in a byte, the first in its low bits; shapes count the bytes
)

// dtypes are all element types, in the order in which error texts list them.
var dtypes = []DType{Bool, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64, Float16, BFloat16, Float32, Float64,
	Complex64, Complex128, Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ, Float8E8M0FNU, Float4E2M1FNx2}

var itemSizes = map[DType]uint64{
	Bool: 1, Int8: 1, Uint8: 1, Float4E2M1FNx2: 1, Float8E4M3FN: 1, Float8E4M3FNUZ: 1, Float8E5M2: 1, Float8E5M2FNUZ: 1, Float8E8M0FNU: 1,
	Int16: 2, Uint16: 2, Float16: 2, BFloat16: 2,
	Int32: 4, Uint32: 4, Float32: 4,
	Int64: 8, Uint64: 8, Float64: 8, Complex64: 8,
	Complex128: 16,
}

// ItemSize returns the size of one element in bytes, or 0 for an unknown type.
func (d DType) ItemSize() uint64 { return itemSizes[d] }
