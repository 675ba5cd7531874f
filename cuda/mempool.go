package cuda

import (
	"fmt"
	"sync"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// poolMu is held around import, export and destruction of pools and of pool
// memory, and around the unmapping of imported memory: drivers up to CUDA 13.0
// at least can crash when threads do these at once.
var poolMu sync.Mutex

// MemPoolSpec describes a memory pool.
type MemPoolSpec struct {
	MaxBytes         uint64   // bound of the pool, which the driver rounds up (an H200's to 32 MiB); 0 leaves it to the driver
	ReleaseThreshold uint64   // bytes that are kept when streams synchronise; 0, the driver's default, keeps none
	Location         Location // zero: the context's device
	Exportable       bool     // can be exported as a file descriptor
}

// Validate refuses what no driver accepts.
func (s MemPoolSpec) Validate() error {
	if err := s.Location.Validate(); err != nil {
		return fmt.Errorf("cuda: memory pool spec: %w", err)
	}
	return nil
}

// MemPool is a stream-ordered memory pool: one that this process made, or one
// of another process that it imported. A process that has a pool's file descriptor
// can reach all of its memory.
type MemPool struct {
	owned
	handle   uintptr
	imported bool
}

// NewMemPool creates a memory pool.
//
// Errors: ErrNotSupported when the device has no pools of this sort.
func (c *Context) NewMemPool(spec MemPoolSpec) (*MemPool, error) {
	const op = "Context.NewMemPool"
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := c.enter(op); err != nil {
		return nil, err
	}
	h, st := driver.PoolCreate(c.handle, driver.PoolProps{
		Location:         spec.Location.in(c),
		MaxSize:          spec.MaxBytes,
		ReleaseThreshold: spec.ReleaseThreshold,
		Exportable:       spec.Exportable,
	})
	return c.memPool(h, st, op, false)
}

// memPool wraps a new handle and takes over the use of the context.
func (c *Context) memPool(h uintptr, st driver.Status, op string, imported bool) (*MemPool, error) {
	if st != 0 {
		defer c.leave()
		return nil, c.fail(st, op)
	}
	p := &MemPool{handle: h, imported: imported}
	p.own(c, op, func() error {
		poolMu.Lock()
		defer poolMu.Unlock()
		return c.fail(driver.PoolDestroy(c.handle, h), "MemPool.Close")
	})
	return p, nil
}

// Close destroys the pool, or this process's import of it. The driver keeps
// memory that is still allocated until it is freed. After an error the pool
// stays open.
//
// Errors: ErrInvalidValue for an imported pool of which a pointer is still
// imported.
func (p *MemPool) Close() error { return p.close() }

// Handle is the CUmemoryPool, for other libraries in this process. Two imports
// of one pool have the same.
func (p *MemPool) Handle() uintptr { return p.handle }

// Imported reports whether the pool is another process's.
func (p *MemPool) Imported() bool { return p.imported }

// Alloc allocates size bytes. The memory may be used by work that comes after
// this call in the stream, or that waits for it.
//
// Errors: ErrOutOfMemory, also when the pool's bound is reached;
// ErrInvalidValue for no bytes and for an imported pool, which cannot be
// allocated from.
func (p *MemPool) Alloc(size uint64, s *Stream) (DevicePtr, error) {
	const op = "MemPool.Alloc"
	if size == 0 { // the driver calls it a success
		return 0, invalid(op, p.ctx.device.ordinal, "no bytes")
	}
	if err := p.enter(op); err != nil {
		return 0, err
	}
	defer p.leave()
	h, err := s.use(op)
	if err != nil {
		return 0, err
	}
	defer s.done()
	ptr, st := driver.PoolAlloc(p.ctx.handle, p.handle, h, size)
	return DevicePtr(ptr), p.fail(st, op)
}

// Free gives memory back, or ends this process's import of it, when the work
// before it in the stream is done. ptr is what Alloc or ImportPtr gave.
//
// Memory that other processes have imported must not be freed before they are
// done with it: the driver would give it to its next owner and they would see
// that owner's data.
func (p *MemPool) Free(ptr DevicePtr, s *Stream) error {
	const op = "MemPool.Free"
	if err := p.enter(op); err != nil {
		return err
	}
	defer p.leave()
	h, err := s.use(op)
	if err != nil {
		return err
	}
	defer s.done()
	if p.imported {
		poolMu.Lock()
		defer poolMu.Unlock()
	}
	return p.fail(driver.PoolFree(p.ctx.handle, h, uint64(ptr)), op)
}

// TrimTo gives memory that is not in use back to the device, until the pool
// holds keep bytes or nothing is left to give.
func (p *MemPool) TrimTo(keep uint64) error {
	const op = "MemPool.TrimTo"
	if err := p.enter(op); err != nil {
		return err
	}
	defer p.leave()
	return p.fail(driver.PoolTrim(p.ctx.handle, p.handle, keep), op)
}
