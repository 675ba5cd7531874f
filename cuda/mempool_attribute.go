package cuda

import "github.com/poolbridge/poolbridge/cuda/internal/driver"

// Values of CUmemPool_attribute.
const (
	poolReleaseThreshold = 4
	poolReservedMem      = 5
	poolReservedMemHigh  = 6
	poolUsedMem          = 7
	poolUsedMemHigh      = 8
)

// The methods in this file work only in the process that made the pool. For an
// imported pool, they return ErrInvalidValue.

// UsedMem returns how many bytes are allocated from the pool.
func (p *MemPool) UsedMem() (uint64, error) { return p.attribute("MemPool.UsedMem", poolUsedMem) }

// UsedMemHigh returns the greatest number of bytes that were ever allocated at
// the same time.
func (p *MemPool) UsedMemHigh() (uint64, error) {
	return p.attribute("MemPool.UsedMemHigh", poolUsedMemHigh)
}

// ReservedMem returns how many bytes the pool got from the device: allocated
// and unused bytes together.
func (p *MemPool) ReservedMem() (uint64, error) {
	return p.attribute("MemPool.ReservedMem", poolReservedMem)
}

// ReservedMemHigh returns the greatest number of bytes that the pool ever had
// at one time.
func (p *MemPool) ReservedMemHigh() (uint64, error) {
	return p.attribute("MemPool.ReservedMemHigh", poolReservedMemHigh)
}

// ReleaseThreshold returns how many bytes the pool keeps when a stream, an
// event or the context is synchronised. The driver may free unused memory above
// this threshold.
func (p *MemPool) ReleaseThreshold() (uint64, error) {
	return p.attribute("MemPool.ReleaseThreshold", poolReleaseThreshold)
}

// SetReleaseThreshold sets the number of bytes that ReleaseThreshold describes.
func (p *MemPool) SetReleaseThreshold(bytes uint64) error {
	const op = "MemPool.SetReleaseThreshold"
	if err := p.enter(op); err != nil {
		return err
	}
	defer p.leave()
	return p.fail(driver.PoolSetAttribute(p.ctx.handle, p.handle, poolReleaseThreshold, bytes), op)
}

func (p *MemPool) attribute(op string, attribute int) (uint64, error) {
	if err := p.enter(op); err != nil {
		return 0, err
	}
	defer p.leave()
	v, st := driver.PoolAttribute(p.ctx.handle, p.handle, attribute)
	return v, p.fail(st, op)
}
