package cuda

import "github.com/poolbridge/poolbridge/cuda/internal/driver"

// SetAccess says what a device may do with the pool's memory. The device that
// holds the memory always has read-write access; any other, and every device
// for a pool on the host, has none until it is granted. It is granted in each
// process by itself.
//
// Errors: ErrNotSupported for AccessReadOnly (a pool cannot be read-only),
// ErrInvalidDevice when the device cannot reach the memory.
func (p *MemPool) SetAccess(d Device, flags AccessFlags) error {
	const op = "MemPool.SetAccess"
	if err := p.enter(op); err != nil {
		return err
	}
	defer p.leave()
	return p.fail(driver.PoolSetAccess(p.ctx.handle, p.handle, DeviceLocation(d).in(p.ctx), int(flags)), op)
}

// Access is what a device may do with the pool's memory in this process.
func (p *MemPool) Access(d Device) (AccessFlags, error) {
	const op = "MemPool.Access"
	if err := p.enter(op); err != nil {
		return AccessNone, err
	}
	defer p.leave()
	flags, st := driver.PoolAccess(p.ctx.handle, p.handle, DeviceLocation(d).in(p.ctx))
	return AccessFlags(flags), p.fail(st, op)
}
