package cuda

import (
	"syscall"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// Physical is device memory that does not have an address yet (cuMemCreate). [Context.MapPhysical] maps the memory at an address. A program can
// map the same memory several times. Another process can import the memory with a file descriptor.
type Physical struct {
	owned
	handle uint64
	size   uint64
}

// AllocationGranularity returns a number of bytes, 2 MiB on current GPUs. The sizes of physical memory and of mappings are multiples of this
// number.
func (c *Context) AllocationGranularity() (uint64, error) {
	const op = "Context.AllocationGranularity"
	if err := c.enter(op); err != nil {
		return 0, err
	}
	defer c.leave()
	n, st := driver.VMMGranularity(c.handle, c.device.handle)
	return n, c.fail(st, op)
}

// NewPhysical allocates physical memory that can be exported. The size must be a multiple of the result of AllocationGranularity.
//
// Errors: ErrOutOfMemory; ErrInvalidValue if size is no multiple of AllocationGranularity.
func (c *Context) NewPhysical(size uint64) (*Physical, error) {
	const op = "Context.NewPhysical"
	if err := c.enter(op); err != nil {
		return nil, err
	}
	h, st := driver.VMMCreate(c.handle, c.device.handle, size)
	return c.physical(h, size, st, op)
}

// ImportPhysical imports physical memory of another process. The file descriptor fd still belongs to the caller, who may close it after the
// call. The driver does not know the size of imported memory, so the process that exports the memory must send the size. MapPhysical fails if
// the size is wrong.
func (c *Context) ImportPhysical(fd int, size uint64) (*Physical, error) {
	const op = "Context.ImportPhysical"
	if fd < 0 {
		return nil, invalid(op, c.device.ordinal, "negative file descriptor")
	}
	if err := c.enter(op); err != nil {
		return nil, err
	}
	h, st := driver.VMMImport(c.handle, fd)
	return c.physical(h, size, st, op)
}

// physical makes a Physical of a new handle. The caller has begun a use of the context. This use ends when the Physical is destroyed, or in this
// call if st is an error.
func (c *Context) physical(h, size uint64, st driver.Status, op string) (*Physical, error) {
	if st != 0 {
		defer c.leave()
		return nil, c.fail(st, op)
	}
	p := &Physical{handle: h, size: size}
	p.own(c, op, func() error { return c.fail(driver.VMMRelease(c.handle, h), "Physical.Close") })
	return p, nil
}

// Close releases the memory. The driver keeps the memory allocated as long as it is mapped, a file descriptor for it is open, or another process
// has imported it.
func (p *Physical) Close() error { return p.close() }

// Size returns the memory's size in bytes.
func (p *Physical) Size() uint64 { return p.size }

// ExportFD exports the memory as a file descriptor. The caller owns the descriptor, and the system closes it on exec. As long as any process has
// the descriptor open, the memory stays allocated, even after the process that called ExportFD has died.
func (p *Physical) ExportFD() (int, error) {
	const op = "Physical.ExportFD"
	if err := p.enter(op); err != nil {
		return -1, err
	}
	defer p.leave()
	// VMMExport first gets the descriptor from the driver, and then sets close-on-exec. A child process that starts between these two steps would
	// inherit the descriptor: see MemPool.ExportFD.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, st := driver.VMMExport(p.ctx.handle, p.handle)
	if st != 0 {
		return -1, p.fail(st, op)
	}
	return fd, nil
}
