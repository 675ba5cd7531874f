package cuda

import (
	"syscall"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// Physical is memory of a device without an address (cuMemCreate).
// [Context.MapPhysical] maps the memory at an address, several times if needed.
// Other processes import the memory with its file descriptor.
type Physical struct {
	owned
	handle uint64
	size   uint64
}

// AllocationGranularity returns the unit, in bytes, of physical memory and
// mappings: 2 MiB on current GPUs.
func (c *Context) AllocationGranularity() (uint64, error) {
	const op = "Context.AllocationGranularity"
	if err := c.enter(op); err != nil {
		return 0, err
	}
	defer c.leave()
	n, st := driver.VMMGranularity(c.handle, c.device.handle)
	return n, c.fail(st, op)
}

// NewPhysical allocates physical memory that can be exported. size must be a
// multiple of AllocationGranularity.
//
// Errors: ErrOutOfMemory; ErrInvalidValue if size is no multiple of
// AllocationGranularity.
func (c *Context) NewPhysical(size uint64) (*Physical, error) {
	const op = "Context.NewPhysical"
	if err := c.enter(op); err != nil {
		return nil, err
	}
	h, st := driver.VMMCreate(c.handle, c.device.handle, size)
	return c.physical(h, size, st, op)
}

// ImportPhysical imports physical memory of another process. The descriptor
// still belongs to the caller, and the import does not need it afterwards. The
// driver does not know the size of imported memory, so the exporter must send
// the size. MapPhysical fails if the size is wrong.
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

// physical makes a Physical of a new handle and takes over the caller's use of
// the context.
func (c *Context) physical(h, size uint64, st driver.Status, op string) (*Physical, error) {
	if st != 0 {
		defer c.leave()
		return nil, c.fail(st, op)
	}
	p := &Physical{handle: h, size: size}
	p.own(c, op, func() error { return c.fail(driver.VMMRelease(c.handle, h), "Physical.Close") })
	return p, nil
}

// Close releases the memory. The memory stays allocated while a mapping, a
// descriptor or another process holds it.
func (p *Physical) Close() error { return p.close() }

// Size returns the memory's size in bytes.
func (p *Physical) Size() uint64 { return p.size }

// ExportFD exports the memory as a file descriptor, which the caller owns and
// which is closed on exec. An open descriptor keeps the memory alive, also
// after this process has died.
func (p *Physical) ExportFD() (int, error) {
	const op = "Physical.ExportFD"
	if err := p.enter(op); err != nil {
		return -1, err
	}
	defer p.leave()
	// As in MemPool.ExportFD, close-on-exec is set after the driver has made
	// the descriptor.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, st := driver.VMMExport(p.ctx.handle, p.handle)
	if st != 0 {
		return -1, p.fail(st, op)
	}
	return fd, nil
}
