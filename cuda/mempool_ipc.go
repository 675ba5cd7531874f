package cuda

import (
	"syscall"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// PtrExportData identifies an allocation of a pool. A process that has imported the pool maps the allocation with this data (see
// [MemPool.ImportPtr]). The data is not a secret: a process can guess it, and the data still works after the allocation is freed. Only the
// pool's file descriptor protects the memory.
type PtrExportData [64]byte

// ExportFD exports the pool as a file descriptor. The caller owns the descriptor, and the system closes it on exec. As long as any process has
// the descriptor open, the memory of the pool stays allocated. This is so even if the process that made the pool has died, and even if the
// process that has the descriptor does not use CUDA.
//
// Errors: ErrInvalidValue if the pool was made without Exportable, or if the pool is imported.
func (p *MemPool) ExportFD() (int, error) {
	const op = "MemPool.ExportFD"
	if err := p.enter(op); err != nil {
		return -1, err
	}
	defer p.leave()
	poolMu.Lock()
	defer poolMu.Unlock()
	// PoolExportFD first gets the descriptor from the driver, and then sets close-on-exec. No child process may start between these two steps,
	// because it would inherit the descriptor.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, st := driver.PoolExportFD(p.ctx.handle, p.handle)
	if st != 0 {
		return -1, p.fail(st, op)
	}
	return fd, nil
}

// ExportPtr returns data with which other processes map an allocation of the pool. The data identifies the whole allocation. If another process
// needs a part of it, the caller must also send the offset of this part. Every call for one allocation returns the same data. But a later
// allocation at the same address can have the same data too, if the pool kept the memory between the two allocations.
//
// Errors: ErrInvalidValue if the program has not called the pool's method ExportFD yet, if ptr is not a result of Alloc, or if the memory is
// imported.
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

// ImportMemPool imports a pool of another process. The file descriptor fd still belongs to the caller, who may close it after the call.
//
// If a process imports one pool twice, it gets two MemPools with the same handle, and must close both. An imported pool cannot allocate memory,
// export anything, trim its memory or return its attributes: the methods that do these things fail with ErrInvalidValue.
//
// Errors: ErrUnknown if fd is not the descriptor of a pool.
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

// ImportPtr maps an allocation of an imported pool and returns its address in this process. [MemPool.Free] ends the mapping, but does not free
// the memory.
//
// If a process imports one allocation twice, it gets the same address twice, and the first Free unmaps the allocation for both imports (NVIDIA
// bug 5570902). So a process should import an allocation only once, count the users of the import, and call Free when the last user has
// finished.
//
// Errors: ErrInvalidValue if the data belongs to another pool, or if p is not an imported pool. If the allocation is already freed, the driver
// does not notice this, and ImportPtr returns no error.
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
