package cuda

import (
	"errors"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// Stream is a queue of work on a device. Work in one stream runs in order.
//
// If a method has a parameter of type *Stream, nil stands for the legacy default stream of the context.
type Stream struct {
	owned
	handle uintptr
}

// NewStream creates a stream. The work of the stream does not wait for work of the legacy default stream. The driver can make NewStream wait
// until all streams of the context are idle: measured on an H100, in one of 43 calls.
func (c *Context) NewStream() (*Stream, error) {
	const op = "Context.NewStream"
	if err := c.enter(op); err != nil {
		return nil, err
	}
	h, st := driver.StreamCreate(c.handle)
	if st != 0 {
		defer c.leave()
		return nil, c.fail(st, op)
	}
	s := &Stream{handle: h}
	s.own(c, op, func() error { return c.fail(driver.StreamDestroy(c.handle, h), "Stream.Close") })
	return s, nil
}

// WrapStream makes a Stream of an existing CUstream of this context. The CUstream still belongs to the code that made it, and Close does not
// destroy it.
func (c *Context) WrapStream(handle uintptr) (*Stream, error) {
	const op = "Context.WrapStream"
	if err := c.enter(op); err != nil {
		return nil, err
	}
	s := &Stream{handle: handle}
	s.own(c, op, func() error { return nil })
	return s, nil
}

// Close destroys the stream. The device still does all work that is queued in the stream.
func (s *Stream) Close() error { return s.close() }

// Handle returns the CUstream, so that other libraries in this process can use the stream.
func (s *Stream) Handle() uintptr { return s.handle }

// use begins a use of the stream, which may be nil, and returns its handle.
func (s *Stream) use(op string) (uintptr, error) {
	if s == nil {
		return 0, nil
	}
	return s.handle, s.enter(op)
}

// done ends a use that began with use.
func (s *Stream) done() {
	if s != nil {
		s.leave()
	}
}

// Synchronize waits until all work in the stream is done, and returns errors of that work. While it waits, it blocks an OS thread.
func (s *Stream) Synchronize() error {
	return s.do("Stream.Synchronize", func() driver.Status { return driver.StreamSynchronize(s.ctx.handle, s.handle) })
}

// Query reports whether all work in the stream is done.
func (s *Stream) Query() (bool, error) {
	const op = "Stream.Query"
	if err := s.enter(op); err != nil {
		return false, err
	}
	defer s.leave()
	return finished(s.fail(driver.StreamQuery(s.ctx.handle, s.handle), op))
}

// WaitEvent makes later work in the stream wait until the work that the event recorded is done. Only the last call of [Event.Record] before
// WaitEvent counts.
func (s *Stream) WaitEvent(e *Event) error {
	const op = "Stream.WaitEvent"
	if err := s.enter(op); err != nil {
		return err
	}
	defer s.leave()
	if err := e.enter(op); err != nil {
		return err
	}
	defer e.leave()
	return s.fail(driver.StreamWaitEvent(s.ctx.handle, s.handle, e.handle), op)
}

// WriteValue64 queues a write of the 64-bit word v to the address ptr. The device writes the word after it has done the earlier work in the
// stream. A thread that reads this word also sees everything that the earlier work wrote. The address must be a multiple of 8, and must be in
// registered host memory or in memory from [Context.Malloc].
//
// Errors: ErrInvalidValue if ptr is in memory of a pool.
func (s *Stream) WriteValue64(ptr DevicePtr, v uint64) error {
	const op = "Stream.WriteValue64"
	if err := s.enter(op); err != nil {
		return err
	}
	defer s.leave()
	return s.fail(driver.StreamWriteValue64(s.ctx.handle, s.handle, uint64(ptr), v), op)
}

// WaitValue64GEQ makes later work in the stream wait until the 64-bit word at the address ptr is v or more. The comparison is cyclic:
// int64(word-v) >= 0. There is no timeout: if the process that should write the word dies, the stream waits until another process writes it.
func (s *Stream) WaitValue64GEQ(ptr DevicePtr, v uint64) error {
	const op = "Stream.WaitValue64GEQ"
	if err := s.enter(op); err != nil {
		return err
	}
	defer s.leave()
	return s.fail(driver.StreamWaitValue64(s.ctx.handle, s.handle, uint64(ptr), v), op)
}

// finished returns what the error of a query means: whether the work is done, or that the query failed.
func finished(err error) (bool, error) {
	if errors.Is(err, ErrNotReady) {
		return false, nil
	}
	return err == nil, err
}
