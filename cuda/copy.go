package cuda

import "github.com/poolbridge/poolbridge/cuda/internal/driver"

// CopyHtoD copies from host memory to the device, and returns when the copy is done. It does not wait for work that is queued in streams.
func (c *Context) CopyHtoD(dst DevicePtr, src []byte) error {
	return c.do("Context.CopyHtoD", func() driver.Status { return driver.CopyHtoD(c.handle, uint64(dst), src) })
}

// CopyDtoH copies from the device to host memory, and returns when the copy is done. It does not wait for work that is queued in streams.
func (c *Context) CopyDtoH(dst []byte, src DevicePtr) error {
	return c.do("Context.CopyDtoH", func() driver.Status { return driver.CopyDtoH(c.handle, dst, uint64(src)) })
}

// CopyDtoD copies from memory of a device to memory of the same or another device, and returns when the copy is done.
func (c *Context) CopyDtoD(dst, src DevicePtr, bytes uint64) error {
	return c.do("Context.CopyDtoD", func() driver.Status { return driver.CopyDtoD(c.handle, uint64(dst), uint64(src), bytes) })
}

// CopyHtoDAsync queues a copy of a range of src to dst. The range begins at `offset` and is `bytes` bytes long. Until the copy is done, the
// caller must not write src.
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

// CopyDtoHAsync queues a copy from src to a range of dst. The range begins at `offset` and is `bytes` bytes long. Until the copy is done, the
// caller must not read dst.
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

// CopyDtoDAsync queues a copy from memory of a device to memory of the same or another device.
func (s *Stream) CopyDtoDAsync(dst, src DevicePtr, bytes uint64) error {
	return s.do("Stream.CopyDtoDAsync", func() driver.Status {
		return driver.CopyDtoDAsync(s.ctx.handle, s.handle, uint64(dst), uint64(src), bytes)
	})
}

// Memset8 queues work that sets every byte of a range to v. The range begins at `dst` and is `bytes` bytes long.
func (s *Stream) Memset8(dst DevicePtr, v uint8, bytes uint64) error {
	return s.do("Stream.Memset8", func() driver.Status { return driver.Memset8(s.ctx.handle, s.handle, uint64(dst), v, bytes) })
}

// Memset32 queues work that sets `count` words to `v`. A word has four bytes, and the first word is at `dst`. The address `dst` must be a
// multiple of 4.
func (s *Stream) Memset32(dst DevicePtr, v uint32, count uint64) error {
	return s.do("Stream.Memset32", func() driver.Status { return driver.Memset32(s.ctx.handle, s.handle, uint64(dst), v, count) })
}
