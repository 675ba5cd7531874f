package cuda

import "github.com/poolbridge/poolbridge/cuda/internal/driver"

// CopyHtoD copies from host memory to the device and returns when the data has
// arrived. It does not wait for work queued in streams.
func (c *Context) CopyHtoD(dst DevicePtr, src []byte) error {
	const op = "Context.CopyHtoD"
	if err := c.enter(op); err != nil {
		return err
	}
	defer c.leave()
	return c.fail(driver.CopyHtoD(c.handle, uint64(dst), src), op)
}

// CopyDtoH copies from the device to host memory and returns when the data has
// arrived. It does not wait for work queued in streams.
func (c *Context) CopyDtoH(dst []byte, src DevicePtr) error {
	const op = "Context.CopyDtoH"
	if err := c.enter(op); err != nil {
		return err
	}
	defer c.leave()
	return c.fail(driver.CopyDtoH(c.handle, dst, uint64(src)), op)
}

// CopyDtoD copies within the device, or between devices, and returns when the
// data has arrived.
func (c *Context) CopyDtoD(dst, src DevicePtr, bytes uint64) error {
	const op = "Context.CopyDtoD"
	if err := c.enter(op); err != nil {
		return err
	}
	defer c.leave()
	return c.fail(driver.CopyDtoD(c.handle, uint64(dst), uint64(src), bytes), op)
}

// CopyHtoDAsync queues a copy of a range of src to dst. The parameters offset
// and bytes give the range. The caller must not write src before the copy is
// done.
//
// Errors: ErrInvalidValue if the range does not lie within src.
func (s *Stream) CopyHtoDAsync(dst DevicePtr, src *Pinned, offset, bytes uint64) error {
	const op = "Stream.CopyHtoDAsync"
	mem, err := src.use(op, offset, bytes)
	if err != nil {
		return err
	}
	defer src.leave()
	if err := s.enter(op); err != nil {
		return err
	}
	defer s.leave()
	return s.fail(driver.CopyHtoDAsync(s.ctx.handle, s.handle, uint64(dst), mem, bytes), op)
}

// CopyDtoHAsync queues a copy from src to a range of dst. The parameters offset
// and bytes give the range. The caller must not read dst before the copy is
// done.
//
// Errors: ErrInvalidValue if the range does not lie within dst.
func (s *Stream) CopyDtoHAsync(dst *Pinned, offset uint64, src DevicePtr, bytes uint64) error {
	const op = "Stream.CopyDtoHAsync"
	mem, err := dst.use(op, offset, bytes)
	if err != nil {
		return err
	}
	defer dst.leave()
	if err := s.enter(op); err != nil {
		return err
	}
	defer s.leave()
	return s.fail(driver.CopyDtoHAsync(s.ctx.handle, s.handle, mem, uint64(src), bytes), op)
}

// CopyDtoDAsync queues a copy within the device, or between devices.
func (s *Stream) CopyDtoDAsync(dst, src DevicePtr, bytes uint64) error {
	const op = "Stream.CopyDtoDAsync"
	if err := s.enter(op); err != nil {
		return err
	}
	defer s.leave()
	return s.fail(driver.CopyDtoDAsync(s.ctx.handle, s.handle, uint64(dst), uint64(src), bytes), op)
}

// Memset8 queues work that sets every byte of a range to v. The range begins at
// dst. The parameter bytes is its size.
func (s *Stream) Memset8(dst DevicePtr, v uint8, bytes uint64) error {
	const op = "Stream.Memset8"
	if err := s.enter(op); err != nil {
		return err
	}
	defer s.leave()
	return s.fail(driver.Memset8(s.ctx.handle, s.handle, uint64(dst), v, bytes), op)
}

// Memset32 queues work that sets count words of four bytes, beginning at dst,
// to v. dst must be a multiple of 4.
func (s *Stream) Memset32(dst DevicePtr, v uint32, count uint64) error {
	const op = "Stream.Memset32"
	if err := s.enter(op); err != nil {
		return err
	}
	defer s.leave()
	return s.fail(driver.Memset32(s.ctx.handle, s.handle, uint64(dst), v, count), op)
}
