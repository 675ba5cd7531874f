package mempool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/typed"
)

// Event is an interprocess event of CUDA. One process records the event in a queue of a GPU: the event then marks the work that is in this
// queue. Queues of other processes can wait until the marked work is done. An event works only between processes of the same user that
// share /dev/shm, and a wait for an event of a dead process never ends. Fences do not have these two limits.
type Event struct {
	event        *cuda.Event // nil if this process only passes the event on
	handle       cuda.IPCEventHandle
	made         bool          // this process made the event
	deviceStream *deviceStream // the device stream of the event's GPU; nil if another process made the event

	mu       sync.Mutex
	recorded bool
}

// EventBytes is the size of an interprocess event's handle.
const EventBytes = len(cuda.IPCEventHandle{})

// madeEvents has the events that this process has made and not closed. The driver cannot open these events in this process.
var madeEvents sync.Map // of cuda.IPCEventHandle to *Event

// NewEvent makes an event on the context's GPU. The caller must keep the event open as long as another process may still open the event by
// its handle.
//
// Errors: [ErrUnavailable] if the GPU has no interprocess events.
func NewEvent(ctx *cuda.Context) (*Event, error) {
	if ok, err := ctx.Device().SupportsIPCEvents(); err != nil || !ok {
		return nil, deviceLacks(ctx.Device(), "interprocess events", err)
	}
	event, err := ctx.NewEvent(cuda.EventSpec{Interprocess: true})
	if err != nil {
		return nil, deviceError("make an interprocess event", err)
	}
	handle, err := event.IPCHandle()
	if err != nil {
		return nil, errors.Join(deviceError("export an event", err), insist(event.Close))
	}
	deviceStream, err := openDeviceStream(ctx.Device())
	if err != nil {
		return nil, errors.Join(err, insist(event.Close))
	}
	e := &Event{event: event, handle: handle, made: true, deviceStream: deviceStream}
	madeEvents.Store(handle, e)
	return e, nil
}

// OpenEvent opens the event with the given handle, for queues of one GPU. The parameter `device` is the GPU's ordinal or its UUID. If this
// process has made the event, OpenEvent returns the existing Event.
//
// Errors: [ErrUnavailable] if this process cannot open events of the process that made the event, or if that process is gone; [ErrInvalid]
// for a handle that does not have 64 bytes.
func OpenEvent(device string, handle []byte) (*Event, error) {
	known, err := EventOf(handle)
	if err != nil {
		return nil, err
	}
	if e, ok := madeEvents.Load(known.handle); ok {
		return e.(*Event), nil
	}
	d, err := FindDevice(device)
	if err != nil {
		return nil, err
	}
	ctx, err := d.Retain()
	if err != nil {
		return nil, deviceError(fmt.Sprintf("use GPU %d", d.Ordinal()), err)
	}
	event, err := ctx.OpenEvent(known.handle)
	left := deviceError("let go of a GPU", insist(ctx.Close)) // the event keeps the context
	switch {
	case err != nil:
		return nil, errors.Join(eventError(err), left)
	case left != nil:
		return nil, errors.Join(left, insist(event.Close))
	}
	return &Event{event: event, handle: known.handle, recorded: true}, nil
}

func eventError(err error) error {
	switch {
	case errors.Is(err, cuda.ErrMapFailed):
		return fmt.Errorf("%w: an interprocess event cannot be opened: the process that made it is of another user, sees another /dev/shm "+
			"(as in another container), or is gone; have it publish with a fence, which works there too: %w", ErrUnavailable, err)
	case errors.Is(err, cuda.ErrInvalidContext):
		return fmt.Errorf("%w: an interprocess event cannot be opened by the process that made it: %w", ErrInvalid, err)
	}
	return deviceError("open an interprocess event", err)
}

// EventOf returns an event that this process does not open. The process can only pass the event's handle on to other processes.
//
// Errors: [ErrInvalid] for a handle that does not have 64 bytes.
func EventOf(handle []byte) (*Event, error) {
	e := new(Event)
	if len(handle) != len(e.handle) {
		return nil, typed.Errorf(ErrInvalid, "the handle of an interprocess event has %d bytes, not %d", len(e.handle), len(handle))
	}
	copy(e.handle[:], handle)
	return e, nil
}

// Handle returns the handle with which other processes open the event.
func (e *Event) Handle() []byte { return e.handle[:] }

// Record makes the event mark all work that is now in queue q. After a second call of Record, the event marks the work of the second call.
// But a queue that has begun to wait for the event before the second call waits for the work of the first call.
//
// Errors: [ErrInvalid] if the queue is not a queue of a GPU.
func (e *Event) Record(q Queue) error {
	s, ok := q.(*streamQueue)
	if !ok || e.event == nil {
		return typed.Errorf(ErrInvalid, "an event that this process made or opened is recorded in a queue of a GPU (%T)", q)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.event.Record(s.stream); err != nil {
		return deviceError("record an event", err)
	}
	e.recorded = true
	return nil
}

// Before makes later work in a queue wait for the event. If q is [CPU], Before itself waits. An event that was never recorded counts as
// reached already.
//
// Errors: if q is [CPU], the context's error, with [ErrBusy] at the context's deadline; [ErrInvalid] for an event that [EventOf] returned.
func (e *Event) Before(ctx context.Context, q Queue) error {
	if e.event == nil {
		return typed.Errorf(ErrInvalid, "an event that this process only passes on cannot be waited for: open it")
	}
	if s, ok := q.(*streamQueue); ok {
		return deviceError("make a stream wait for an event", s.stream.WaitEvent(e.event))
	}
	for sleep := firstSleep; ; sleep = min(2*sleep, longSleep) {
		done, err := e.event.Query()
		if done || err != nil {
			return deviceError("look at an event", err)
		}
		select {
		case <-ctx.Done():
			return busy(ctx, "an interprocess event is not reached; its process may be gone")
		case <-time.After(sleep): // the GPU does not wake threads
		}
	}
}

// Close destroys the event. Queues that already wait for the event continue to wait until the work that the event marked is done.
func (e *Event) Close() error {
	if e.event == nil {
		return nil
	}
	err := deviceError("close an event", insist(e.event.Close))
	if e.made && madeEvents.CompareAndDelete(e.handle, e) {
		err = errors.Join(err, e.deviceStream.leave())
	}
	return err
}

// line returns the queue that is to wait for the event: the memory's own queue, or the event's device stream if own is [CPU] and this
// process made the event.
func (e *Event) line(own Queue) Queue {
	if own.orderKey() == nil && e.deviceStream != nil {
		return e.deviceStream.queue
	}
	return own
}

// sendable returns an error if the event cannot mark the completion of content of this process.
func (e *Event) sendable() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.event == nil:
		return typed.Errorf(ErrInvalid, "this process only passes the event on, so it cannot make a fence of it: name a fence, or open the event")
	case !e.recorded:
		return typed.Errorf(ErrInvalid, "the event was never recorded, and would say that the content is complete: record it after the work")
	}
	return nil
}
