package cuda

import (
	"syscall"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// PtrExportData identifies memory of a pool in processes that have imported the
// pool. The data protects nothing: a process can guess it, and it still works
// after the allocation is freed. Only the pool's file descriptor protects the
// memory.
type PtrExportData [64]byte

// ExportFD exports the pool as a file descriptor, which the caller owns and
// which is closed on exec. An open descriptor keeps the memory alive, even
// after this process has died, and even if the process that holds the
// descriptor does not use CUDA.
//
// Errors: ErrInvalidValue for a pool that is not Exportable or that is
// imported.
func (p *MemPool) ExportFD() (int, error) {
	const op = "MemPool.ExportFD"
	if err := p.enter(op); err != nil {
		return -1, err
	}
	defer p.leave()
	poolMu.Lock()
	defer poolMu.Unlock()
	// The driver makes the descriptor, and close-on-exec is set after that. No
	// child process may start between these two steps.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, st := driver.PoolExportFD(p.ctx.handle, p.handle)
	if st != 0 {
		return -1, p.fail(st, op)
	}
	return fd, nil
}

// ExportPtr returns data with which other processes map an allocation of the
// pool. The data identifies the whole allocation: for a part of the allocation,
// also send an offset. The data is not unique: the same allocation gives the
// same data every time, but a later allocation at the same address may give the
// same data too, if the pool kept the memory in between.
//
// Errors: ErrInvalidValue before the first ExportFD of the pool, for a pointer
// that Alloc did not return, and for imported memory.
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

// ImportMemPool imports a pool of another process. The descriptor still belongs
// to the caller, and the import does not need it afterwards.
//
// Importing one pool twice gives two MemPools with the same handle, and both
// must be closed. An imported pool cannot allocate, export, trim or return its
// attributes: these methods fail with ErrInvalidValue.
//
// Errors: ErrUnknown if the descriptor is not the descriptor of a pool.
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

// ImportPtr maps an allocation of an imported pool and returns its address in
// this process. [MemPool.Free] ends the mapping. The memory stays allocated.
//
// Importing one allocation twice gives the same address, and the first Free unmaps the allocation for both imports (NVIDIA bug
// 5570902). So import an allocation once in a process and count its users.
//
// Errors: ErrInvalidValue for data of another pool, and for a pool that was not
// imported. The driver does not detect data of freed memory.
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
