package cuda

import "github.com/poolbridge/poolbridge/cuda/internal/driver"

// MemoryType is a CUmemorytype.
type MemoryType int

// Where a pointer's memory is. Zero: the driver does not know the pointer.
const (
	MemoryHost   MemoryType = 1
	MemoryDevice MemoryType = 2
)

// PointerAttributes is what the driver knows about an address.
type PointerAttributes struct {
	MemoryType       MemoryType
	Ordinal          int         // of the device
	RangeStart       DevicePtr   // beginning of the allocation
	RangeSize        uint64      // its size in bytes
	Mapped           bool        // there is memory behind the address
	LegacyIPCCapable bool        // IPCMemHandle works on it
	Access           AccessFlags // of the context's device
	MemPool          uintptr     // the CUmemoryPool that it is from, 0 for none
}

// PointerAttributes asks the driver about an address. One that it does not know
// is no error and has MemoryType zero.
func (c *Context) PointerAttributes(ptr DevicePtr) (PointerAttributes, error) {
	const op = "Context.PointerAttributes"
	if err := c.enter(op); err != nil {
		return PointerAttributes{}, err
	}
	defer c.leave()
	info, st := driver.Pointer(c.handle, uint64(ptr))
	return PointerAttributes{
		MemoryType:       MemoryType(info.MemoryType),
		Ordinal:          int(info.Ordinal),
		RangeStart:       DevicePtr(info.RangeStart),
		RangeSize:        info.RangeSize,
		Mapped:           info.Mapped,
		LegacyIPCCapable: info.LegacyIPC,
		Access:           AccessFlags(info.AccessFlags),
		MemPool:          info.MemPool,
	}, c.fail(st, op)
}
