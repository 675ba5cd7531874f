package mempool

import "errors"

// readyEvent is the interprocess event that came with a lease's content. It is guarded by Order.mu.
type readyEvent struct {
	handle []byte // nil: none came
	device string // where it is opened
	alone  bool   // no fence says the same: it must be waited for
	event  *Event // nil: not opened yet
}

// Expect notes the event that came with the content of memory on a GPU. alone says that it must be waited for.
func (o *Order) Expect(handle []byte, alone bool, device string) {
	o.ready = readyEvent{handle: handle, alone: alone, device: device}
}

// Event is the event that came with the content, opened for as long as the lease lasts; nil if none did.
//
// Errors: as [OpenEvent].
func (o *Order) Event() (*Event, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.openEvent()
}

// openEvent is Event with o.mu held.
func (o *Order) openEvent() (*Event, error) {
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

// Close ends the use of the memory.
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
