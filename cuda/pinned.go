package cuda

import (
	"unsafe"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// Pinned is page-locked host memory. The GPU can access it at the full speed of the bus. Asynchronous copies between host and device need such
// memory.
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

// Close frees the memory. After that, the program must not use the slice from Bytes any more.
func (p *Pinned) Close() error { return p.close() }

// Bytes returns the memory as a slice. The memory is not on the Go heap. After Close, the program must not use the slice any more.
func (p *Pinned) Bytes() []byte { return hostBytes(p.mem, p.size) }

// Size returns the memory's size in bytes.
func (p *Pinned) Size() uint64 { return p.size }

// DevicePtr returns the address that the GPU uses.
func (p *Pinned) DevicePtr() DevicePtr { return p.ptr }

// use begins a use of a part of the memory and returns the part's address.
func (p *Pinned) use(op string, offset, bytes uint64) (uintptr, error) {
	if offset > p.size || bytes > p.size-offset {
		return 0, invalid(op, p.ctx.device.ordinal, "the range is beyond the end of the pinned memory")
	}
	return p.mem + uintptr(offset), p.enter(op)
}

// HostBytes returns the memory at the address p as a slice for the CPU. The memory must belong to a pool on a NUMA node of the host, because the
// CPU and the GPU access such memory at the same address. An access to other memory, or to freed memory, crashes the process.
func (p DevicePtr) HostBytes(bytes uint64) []byte { return hostBytes(uintptr(p), bytes) }

// hostBytes makes a slice of memory that is not on the Go heap.
func hostBytes(mem uintptr, n uint64) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&mem)), n)
}
