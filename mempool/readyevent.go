package mempool

import "errors"

// readyEvent is the interprocess event that came with a lease's content. Order.mu guards it.
type readyEvent struct {
	handle []byte // nil if no event came
	device string // GPU on which the event is opened
	event  *Event // nil if the event is not opened yet
}

// Expect notes that an interprocess event came with the content of memory on a GPU. The parameter `handle` is the event's handle.
func (o *Order) Expect(handle []byte, device string) {
	o.ready = readyEvent{handle: handle, device: device}
}

// Event returns the event that came with the content, or nil if no event came. The first call opens the event. The event stays open until
// the method Close of o is called.
//
// Errors: as [OpenEvent].
func (o *Order) Event() (*Event, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := &o.ready
	if r.event != nil || r.handle == nil {
		return r.event, nil
	}
	e, err := OpenEvent(r.device, r.handle)
	if err != nil {
		return nil, err
	}
	r.event = e
	if !e.made {
		o.opened = append(o.opened, e)
	}
	return e, nil
}

// Close closes the events that o has opened. The caller calls it when the use of the memory has ended.
func (o *Order) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var errs []error
	for _, e := range o.opened {
		errs = append(errs, e.Close())
	}
	o.ready, o.opened = readyEvent{}, nil
	return errors.Join(errs...)
}
