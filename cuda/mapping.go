package cuda

import "github.com/poolbridge/poolbridge/cuda/internal/driver"

// Mapping is a range of addresses at which physical memory is mapped.
type Mapping struct {
	owned
	ptr  DevicePtr
	size uint64

	unmapped bool // the memory is unmapped, but the address range is still reserved
}

// MapPhysical maps the whole memory p at a new address. The device of the context and the devices in the parameter `others` get the access that
// `flags` describes. The driver enforces AccessReadOnly: a driver call that would write read-only memory fails with ErrInvalidValue. A kernel
// that writes read-only memory fails with ErrIllegalAddress and breaks the context of its process.
func (c *Context) MapPhysical(p *Physical, flags AccessFlags, others ...Device) (*Mapping, error) {
	const op = "Context.MapPhysical"
	if err := p.enter(op); err != nil {
		return nil, err
	}
	defer p.leave() // the driver keeps the memory for the mapping
	if err := c.enter(op); err != nil {
		return nil, err
	}
	ptr, st := c.mapSomewhere(p, flags)
	if st != 0 {
		defer c.leave()
		return nil, c.fail(st, op)
	}
	m := &Mapping{ptr: DevicePtr(ptr), size: p.size}
	m.own(c, op, m.unmap)
	for _, d := range others {
		if err := m.SetAccess(d, flags); err != nil {
			_ = m.Close()
			return nil, err
		}
	}
	return m, nil
}

// mapSomewhere maps the whole memory p at a new address.
//
// After an imported host pool has been destroyed, the driver reserves its addresses again but grants no access to memory there
// (docs/measured.md). Then mapSomewhere keeps such ranges, so that the driver reserves others, until one works.
func (c *Context) mapSomewhere(p *Physical, flags AccessFlags) (uint64, driver.Status) {
	const tries = 1 << 14
	var refused []uint64
	defer func() {
		for _, ptr := range refused {
			_ = driver.VMMReleaseRange(c.handle, ptr, p.size) // if it fails, only addresses are lost
		}
	}()
	for {
		ptr, st := driver.VMMMap(c.handle, p.handle, p.size, c.device.handle, int(flags))
		if Result(st.Result()) != ErrAlreadyMapped {
			return ptr, st
		}
		refused = append(refused, ptr)
		if len(refused) == tries {
			return 0, st
		}
	}
}

// Close unmaps the memory. Before the call, all work that uses the mapping must be done. If Close fails, the caller can call it again.
func (m *Mapping) Close() error { return m.close() }

// unmap continues where an earlier failed call stopped.
func (m *Mapping) unmap() error {
	const op = "Mapping.Close"
	if !m.unmapped {
		if st := driver.VMMUnmap(m.ctx.handle, uint64(m.ptr), m.size); st != 0 {
			return m.fail(st, op)
		}
		m.unmapped = true
	}
	return m.fail(driver.VMMReleaseRange(m.ctx.handle, uint64(m.ptr), m.size), op)
}

// Ptr returns the mapping's address.
func (m *Mapping) Ptr() DevicePtr { return m.ptr }

// Size returns the mapping's size in bytes.
func (m *Mapping) Size() uint64 { return m.size }

// SetAccess sets which access the device d has to the mapped memory.
func (m *Mapping) SetAccess(d Device, flags AccessFlags) error {
	return m.do("Mapping.SetAccess", func() driver.Status {
		return driver.VMMSetAccess(m.ctx.handle, uint64(m.ptr), m.size, d.handle, int(flags))
	})
}
