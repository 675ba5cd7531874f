package cuda

import "github.com/poolbridge/poolbridge/cuda/internal/driver"

// These are values of CUmemPool_attribute.
const (
	poolReleaseThreshold = 4
	poolReservedMem      = 5
	poolReservedMemHigh  = 6
	poolUsedMem          = 7
	poolUsedMemHigh      = 8
)

// The methods in this file work only in the process that made the pool. For an imported pool, they return ErrInvalidValue.

// UsedMem returns how many bytes are allocated from the pool.
func (p *MemPool) UsedMem() (uint64, error) { return p.attribute("MemPool.UsedMem", poolUsedMem) }

// UsedMemHigh returns the greatest value that UsedMem has ever had.
func (p *MemPool) UsedMemHigh() (uint64, error) {
	return p.attribute("MemPool.UsedMemHigh", poolUsedMemHigh)
}

// ReservedMem returns how many bytes of memory the pool has now: allocated and unused bytes together.
func (p *MemPool) ReservedMem() (uint64, error) {
	return p.attribute("MemPool.ReservedMem", poolReservedMem)
}

// ReservedMemHigh returns the greatest value that ReservedMem has ever had.
func (p *MemPool) ReservedMemHigh() (uint64, error) {
	return p.attribute("MemPool.ReservedMemHigh", poolReservedMemHigh)
}

// ReleaseThreshold returns a number of bytes. If the pool has more bytes of memory than this number when a stream, an event or the context is
// synchronised, the driver may free unused memory of the pool.
func (p *MemPool) ReleaseThreshold() (uint64, error) {
	return p.attribute("MemPool.ReleaseThreshold", poolReleaseThreshold)
}

// SetReleaseThreshold sets the number of bytes that ReleaseThreshold describes.
func (p *MemPool) SetReleaseThreshold(bytes uint64) error {
	return p.do("MemPool.SetReleaseThreshold", func() driver.Status {
		return driver.PoolSetAttribute(p.ctx.handle, p.handle, poolReleaseThreshold, bytes)
	})
}

func (p *MemPool) attribute(op string, attribute int) (uint64, error) {
	if err := p.enter(op); err != nil {
		return 0, err
	}
	defer p.leave()
	v, st := driver.PoolAttribute(p.ctx.handle, p.handle, attribute)
	return v, p.fail(st, op)
}
