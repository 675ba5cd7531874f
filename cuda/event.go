package cuda

import (
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// EventSpec describes an event.
type EventSpec struct {
	Interprocess bool // another process can open the event
	Timing       bool // the event can measure the time between two events; such an event costs more
}

// Validate returns an error if the driver would refuse the spec.
func (s EventSpec) Validate() error {
	if s.Interprocess && s.Timing {
		return fmt.Errorf("cuda: event spec: an interprocess event cannot measure time: %w", ErrInvalidValue)
	}
	return nil
}

// IPCEventHandle is the handle with which other processes open an interprocess event.
type IPCEventHandle [64]byte

// Event marks a point in a stream.
type Event struct {
	owned
	handle uintptr
}

// NewEvent creates an event.
func (c *Context) NewEvent(spec EventSpec) (*Event, error) {
	const op = "Context.NewEvent"
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := c.enter(op); err != nil {
		return nil, err
	}
	h, st := driver.EventCreate(c.handle, spec.Timing, spec.Interprocess)
	return c.event(h, st, op)
}

// OpenEvent opens an interprocess event that another process made.
//
// Errors: ErrMapFailed if the processes belong to different users or do not share /dev/shm; ErrInvalidContext if this process itself made the
// event.
func (c *Context) OpenEvent(handle IPCEventHandle) (*Event, error) {
	const op = "Context.OpenEvent"
	if err := c.enter(op); err != nil {
		return nil, err
	}
	h, st := driver.EventOpen(c.handle, (*[64]byte)(&handle))
	return c.event(h, st, op)
}

// event makes an Event of a new handle. The caller has begun a use of the context. This use ends when the Event is destroyed, or in this call if
// st is an error.
func (c *Context) event(h uintptr, st driver.Status, op string) (*Event, error) {
	if st != 0 {
		defer c.leave()
		return nil, c.fail(st, op)
	}
	e := &Event{handle: h}
	e.own(c, op, func() error { return c.fail(driver.EventDestroy(c.handle, h), "Event.Close") })
	return e, nil
}

// Close destroys the event. If a stream waits for the event, Close does not end this wait: the stream waits until the recorded work is done.
func (e *Event) Close() error { return e.close() }

// Record makes the event record all work that is in the queue of the stream at the time of the call.
func (e *Event) Record(s *Stream) error {
	const op = "Event.Record"
	if err := e.enter(op); err != nil {
		return err
	}
	defer e.leave()
	h, err := s.use(op)
	if err != nil {
		return err
	}
	defer s.done()
	return e.fail(driver.EventRecord(e.ctx.handle, e.handle, h), op)
}

// Query reports whether the work that the event recorded is done. Query returns true if the event has recorded nothing.
func (e *Event) Query() (bool, error) {
	const op = "Event.Query"
	if err := e.enter(op); err != nil {
		return false, err
	}
	defer e.leave()
	return finished(e.fail(driver.EventQuery(e.ctx.handle, e.handle), op))
}

// Synchronize waits until the work that the event recorded is done.
func (e *Event) Synchronize() error {
	return e.do("Event.Synchronize", func() driver.Status { return driver.EventSynchronize(e.ctx.handle, e.handle) })
}

// ElapsedTime returns how much later the event `e` happened on the GPU than the event `start`. Both events must have been made with the option
// Timing, and the work that they recorded must be done. The resolution is about half a microsecond.
//
// Errors: ErrNotReady, ErrInvalidHandle.
func (e *Event) ElapsedTime(start *Event) (time.Duration, error) {
	const op = "Event.ElapsedTime"
	if err := e.enter(op); err != nil {
		return 0, err
	}
	defer e.leave()
	if err := start.enter(op); err != nil {
		return 0, err
	}
	defer start.leave()
	ms, st := driver.EventElapsed(e.ctx.handle, start.handle, e.handle)
	return time.Duration(float64(ms) * float64(time.Millisecond)), e.fail(st, op)
}

// IPCHandle returns the handle with which other processes open the event. The event must have been made with the option Interprocess.
func (e *Event) IPCHandle() (IPCEventHandle, error) {
	const op = "Event.IPCHandle"
	if err := e.enter(op); err != nil {
		return IPCEventHandle{}, err
	}
	defer e.leave()
	h, st := driver.EventExport(e.ctx.handle, e.handle)
	return IPCEventHandle(h), e.fail(st, op)
}
