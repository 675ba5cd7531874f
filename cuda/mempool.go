package cuda

import (
	"fmt"
	"sync"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// A goroutine holds poolMu while it imports, exports or destroys a pool, while it imports or exports memory of a pool, and while it unmaps
// imported memory. Drivers up to at least CUDA 13.0 can crash when several threads do these operations at the same time.
var poolMu sync.Mutex

// MemPoolSpec describes a memory pool.
type MemPoolSpec struct {
	MaxBytes         uint64   // limit of the pool; the driver rounds the limit up (on an H200, to a multiple of 32 MiB); 0: the driver's limit
	ReleaseThreshold uint64   // bytes that the pool keeps when streams synchronise; with 0, the driver's default, the pool keeps none
	Location         Location // zero: the context's device
	Exportable       bool     // the pool can be exported as a file descriptor
}

// Validate returns an error if every driver would refuse the spec.
func (s MemPoolSpec) Validate() error {
	if err := s.Location.Validate(); err != nil {
		return fmt.Errorf("cuda: memory pool spec: %w", err)
	}
	return nil
}

// MemPool is a stream-ordered memory pool. This process made the pool, or imported the pool from another process. A process that has a pool's
// file descriptor can access all memory of the pool.
type MemPool struct {
	owned
	handle   uintptr
	imported bool
}

// NewMemPool creates a memory pool.
//
// Errors: ErrNotSupported if the device does not support memory pools.
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

// memPool makes a MemPool of a new handle. The caller has begun a use of the context. This use ends when the MemPool is destroyed, or in this
// call if st is an error.
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

// Close destroys a pool that this process made. If this process imported the pool, Close ends the import. The driver keeps memory that was
// allocated from the pool until the memory is freed. If Close fails, the pool stays open.
//
// Errors: ErrInvalidValue if the pool is imported and a pointer from ImportPtr is not freed yet.
func (p *MemPool) Close() error { return p.close() }

// Handle returns the CUmemoryPool, so that other libraries in this process can use the pool. If this process imports one pool twice, both
// imports have the same handle.
func (p *MemPool) Handle() uintptr { return p.handle }

// Imported reports whether the pool belongs to another process.
func (p *MemPool) Imported() bool { return p.imported }

// Alloc allocates size bytes. The allocation is work in the stream s. Later work in the stream s may use the memory at once. Work in another
// stream must first wait until the stream s has done the allocation.
//
// Errors: ErrOutOfMemory if the device has no free memory or the pool has reached its limit; ErrInvalidValue if size is 0, or if the pool is
// imported: an imported pool cannot allocate memory.
func (p *MemPool) Alloc(size uint64, s *Stream) (DevicePtr, error) {
	const op = "MemPool.Alloc"
	if size == 0 { // the driver itself would return no error for size 0
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

// Free frees memory from Alloc, or ends the import of memory from ImportPtr. Free is work in the stream s: the stream does it after all earlier
// work. The address ptr must be a result of Alloc or ImportPtr.
//
// Do not free memory from Alloc while another process still uses its import of this memory. The driver could allocate the memory again, and the
// other process would then see the new data.
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

// TrimTo gives unused memory of the pool back to the device. It stops when the pool has at most `keep` bytes of memory, or has no unused memory.
func (p *MemPool) TrimTo(keep uint64) error {
	return p.do("MemPool.TrimTo", func() driver.Status { return driver.PoolTrim(p.ctx.handle, p.handle, keep) })
}
