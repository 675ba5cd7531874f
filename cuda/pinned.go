package cuda

import (
	"unsafe"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// Pinned is page-locked host memory, which the GPU reads and writes at the full
// speed of the bus and which asynchronous copies need.
type Pinned struct {
	owned
	mem  uintptr
	ptr  DevicePtr
	size uint64
}

// NewPinned allocates page-locked host memory.
func (c *Context) NewPinned(bytes uint64) (*Pinned, error) {
	const op = "Context.NewPinned"
	if bytes == 0 {
		return nil, invalid(op, c.device.ordinal, "no bytes")
	}
	if err := c.enter(op); err != nil {
		return nil, err
	}
	mem, ptr, st := driver.HostAlloc(c.handle, bytes)
	if st != 0 {
		defer c.leave()
		return nil, c.fail(st, op)
	}
	p := &Pinned{mem: mem, ptr: DevicePtr(ptr), size: bytes}
	p.own(c, op, func() error { return c.fail(driver.HostFree(c.handle, mem), "Pinned.Close") })
	return p, nil
}

// Close frees the memory. What Bytes gave must not be touched any more.
func (p *Pinned) Close() error { return p.close() }

// Bytes is the memory. It is not Go's: it is gone after Close.
func (p *Pinned) Bytes() []byte { return hostBytes(p.mem, p.size) }

// Size is the memory's size in bytes.
func (p *Pinned) Size() uint64 { return p.size }

// DevicePtr is the address that the GPU uses.
func (p *Pinned) DevicePtr() DevicePtr { return p.ptr }

// use begins a use of a part of the memory and gives its address.
func (p *Pinned) use(op string, offset, bytes uint64) (uintptr, error) {
	if offset > p.size || bytes > p.size-offset {
		return 0, invalid(op, p.ctx.device.ordinal, "beyond the end of the pinned memory")
	}
	return p.mem + uintptr(offset), p.enter(op)
}

// HostBytes is memory at ptr as the CPU sees it, for memory that both reach: that
// of a pool on a NUMA node of the host. For other memory, and after it is freed,
// touching it is a fault.
func (p DevicePtr) HostBytes(bytes uint64) []byte { return hostBytes(uintptr(p), bytes) }

// hostBytes makes a slice of memory that is not Go's.
func hostBytes(mem uintptr, n uint64) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&mem)), n)
}
