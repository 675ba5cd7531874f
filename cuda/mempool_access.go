package cuda

import "github.com/poolbridge/poolbridge/cuda/internal/driver"

// SetAccess sets what a device may do with the pool's memory, in this process
// only. The device that holds the memory always has read-write access. Any
// other device has no access until SetAccess grants it. For a pool on the host,
// this is true for every device.
//
// Errors: ErrNotSupported for AccessReadOnly, because a pool cannot be
// read-only; ErrInvalidDevice if the device cannot access the memory.
func (p *MemPool) SetAccess(d Device, flags AccessFlags) error {
	const op = "MemPool.SetAccess"
	if err := p.enter(op); err != nil {
		return err
	}
	defer p.leave()
	return p.fail(driver.PoolSetAccess(p.ctx.handle, p.handle, DeviceLocation(d).in(p.ctx), int(flags)), op)
}

// Access returns what a device may do with the pool's memory in this process.
func (p *MemPool) Access(d Device) (AccessFlags, error) {
	const op = "MemPool.Access"
	if err := p.enter(op); err != nil {
		return AccessNone, err
	}
	defer p.leave()
	flags, st := driver.PoolAccess(p.ctx.handle, p.handle, DeviceLocation(d).in(p.ctx))
	return AccessFlags(flags), p.fail(st, op)
}
