package cuda

import "github.com/poolbridge/poolbridge/cuda/internal/driver"

// SetAccess sets which access the device d has to the pool's memory, in this process only. The device on which the memory lies always has
// read-write access. Every other device has no access until SetAccess gives it access. If the memory lies on the host, no device has access
// until SetAccess gives it access.
//
// Errors: ErrNotSupported if flags is AccessReadOnly, because a pool cannot be read-only; ErrInvalidDevice if the device d cannot access the
// memory.
func (p *MemPool) SetAccess(d Device, flags AccessFlags) error {
	return p.do("MemPool.SetAccess", func() driver.Status {
		return driver.PoolSetAccess(p.ctx.handle, p.handle, DeviceLocation(d).in(p.ctx), int(flags))
	})
}

// Access returns which access the device d has to the pool's memory in this process.
func (p *MemPool) Access(d Device) (AccessFlags, error) {
	const op = "MemPool.Access"
	if err := p.enter(op); err != nil {
		return AccessNone, err
	}
	defer p.leave()
	flags, st := driver.PoolAccess(p.ctx.handle, p.handle, DeviceLocation(d).in(p.ctx))
	return AccessFlags(flags), p.fail(st, op)
}
