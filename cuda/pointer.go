package cuda

import "github.com/poolbridge/poolbridge/cuda/internal/driver"

// MemoryType is a CUmemorytype.
type MemoryType int

// Kinds of memory. 0 means that the driver does not know the pointer.
const (
	MemoryHost   MemoryType = 1
	MemoryDevice MemoryType = 2
)

// PointerAttributes is what the driver knows about an address.
type PointerAttributes struct {
	MemoryType       MemoryType
	Ordinal          int         // ordinal of the memory's device
	RangeStart       DevicePtr   // beginning of the allocation
	RangeSize        uint64      // size of the allocation in bytes
	Mapped           bool        // whether there is memory behind the address
	LegacyIPCCapable bool        // whether IPCMemHandle works for the address
	Access           AccessFlags // access of the context's device
	MemPool          uintptr     // the CUmemoryPool that the memory is from, 0 for none
}

// PointerAttributes returns what the driver knows about an address. If the driver does not know the address, this is not an error: MemoryType of
// the result is then 0.
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
