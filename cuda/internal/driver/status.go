// Package driver is a small layer between package cuda and libcuda.so.1. Each Go function calls one C function. The parameters and results are
// plain data: numbers, bytes and texts. The only state of the package is the table of function pointers.
//
// A handle is a uintptr, except the handle of memory from VMMCreate or VMMImport, which is a uint64. An address that the GPU uses is a uint64,
// and a size is a number of bytes. A function that takes a ctx pushes that context, does its work and pops the context within one cgo call.
package driver

import "bytes"

// These results do not come from a driver. Package cuda gives them names.
const (
	ResultNoDriver       = -1
	ResultDriverTooOld   = -2
	ResultSymbolNotFound = -3
	ResultClosed         = -4
)

// Status is the result of a function of this package. It is 0 if the function succeeded. Otherwise it contains two numbers: the number of the
// driver call that failed, and the CUresult of that call.
type Status int64

// Result returns the CUresult, or one of the negative results of this package.
func (s Status) Result() int32 { return int32(uint32(uint64(s))) }

// Call returns the name of the driver call that failed.
func (s Status) Call() string { return callName(int(uint64(s) >> 32)) }

// Location has the values of a CUmemLocation: its type, and its id (the ordinal of a GPU, or the number of a NUMA node).
type Location struct{ Type, ID int32 }

// PoolProps describes the memory pool that PoolCreate makes. The sizes are in bytes.
type PoolProps struct {
	Location         Location
	MaxSize          uint64
	ReleaseThreshold uint64
	Exportable       bool
}

// PointerInfo is what the driver knows about an address.
type PointerInfo struct {
	MemoryType  uint32
	Ordinal     int32
	LegacyIPC   bool
	Mapped      bool
	RangeStart  uint64
	RangeSize   uint64
	AccessFlags uint32
	MemPool     uintptr
}

// MaxLaunchArgs is the greatest number of arguments of a kernel launch.
const MaxLaunchArgs = 32

// cString returns the text before the first zero byte.
func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
