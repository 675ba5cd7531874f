package cuda

import (
	"syscall"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// PtrExportData names memory of a pool to processes that have imported the pool.
// It protects nothing: it can be guessed, and it goes on working after the
// allocation was freed. What protects memory is who has the pool's file
// descriptor.
type PtrExportData [64]byte

// ExportFD exports the pool as a file descriptor, which the caller owns and
// which is closed on exec. It keeps the memory alive, also in a process that
// does not use CUDA and after this one has died.
//
// Errors: ErrInvalidValue for a pool that is not Exportable, or imported.
func (p *MemPool) ExportFD() (int, error) {
	const op = "MemPool.ExportFD"
	if err := p.enter(op); err != nil {
		return -1, err
	}
	defer p.leave()
	poolMu.Lock()
	defer poolMu.Unlock()
	// The driver makes the descriptor and close-on-exec is set after that: no
	// child may be started in between.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, st := driver.PoolExportFD(p.ctx.handle, p.handle)
	if st != 0 {
		return -1, p.fail(st, op)
	}
	return fd, nil
}

// ExportPtr names an allocation of the pool to other processes. It names the
// allocation as a whole: parts of it travel as offsets. The same allocation
// gives the same data every time, and one that comes later at the same address
// may give it too, if the pool kept the memory in between: the data is no
// identity.
//
// Errors: ErrInvalidValue before the first ExportFD of the pool, for any other
// pointer than Alloc gave, and for imported memory.
func (p *MemPool) ExportPtr(ptr DevicePtr) (PtrExportData, error) {
	const op = "MemPool.ExportPtr"
	if err := p.enter(op); err != nil {
		return PtrExportData{}, err
	}
	defer p.leave()
	poolMu.Lock()
	defer poolMu.Unlock()
	data, st := driver.PoolExportPtr(p.ctx.handle, uint64(ptr))
	return PtrExportData(data), p.fail(st, op)
}

// ImportMemPool imports a pool of another process. The descriptor stays the
// caller's and is not needed afterwards.
//
// Importing one pool twice gives two MemPools with one handle, each of which has
// to be closed. What an imported pool cannot do, with ErrInvalidValue: allocate,
// export, trim and tell its attributes.
//
// Errors: ErrUnknown for a descriptor of something else.
func (c *Context) ImportMemPool(fd int) (*MemPool, error) {
	const op = "Context.ImportMemPool"
	if fd < 0 {
		return nil, invalid(op, c.device.ordinal, "negative file descriptor")
	}
	if err := c.enter(op); err != nil {
		return nil, err
	}
	poolMu.Lock()
	h, st := driver.PoolImportFD(c.handle, fd)
	poolMu.Unlock()
	return c.memPool(h, st, op, true)
}

// ImportPtr maps an allocation of an imported pool and gives its address in
// this process. [MemPool.Free] ends the mapping; the memory stays its owner's.
//
// Importing one allocation twice gives one address, and the first Free unmaps
// it for both (NVIDIA bug 5570902): import once in a process and count.
//
// Errors: ErrInvalidValue for data that is not of this pool, and for a pool that
// was not imported. Data of memory that was freed is not told apart.
func (p *MemPool) ImportPtr(data PtrExportData) (DevicePtr, error) {
	const op = "MemPool.ImportPtr"
	if !p.imported {
		return 0, invalid(op, p.ctx.device.ordinal, "the pool was not imported")
	}
	if err := p.enter(op); err != nil {
		return 0, err
	}
	defer p.leave()
	poolMu.Lock()
	defer poolMu.Unlock()
	ptr, st := driver.PoolImportPtr(p.ctx.handle, p.handle, (*[64]byte)(&data))
	return DevicePtr(ptr), p.fail(st, op)
}
