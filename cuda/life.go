package cuda

import (
	"sync/atomic"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// life counts the uses of an object, so that closing it while another goroutine
// is in a call on it is safe: the last user destroys it.
type life struct{ state atomic.Int64 }

const lifeClosed = 1 << 62

// enter begins a use; it is refused once the object is closed.
func (l *life) enter() bool {
	for {
		n := l.state.Load()
		if n&lifeClosed != 0 {
			return false
		}
		if l.state.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave ends a use. The caller destroys the object when it was the last of a
// closed one.
func (l *life) leave() (last bool) { return l.state.Add(-1) == lifeClosed }

// close refuses further uses. The caller destroys the object when last is true;
// otherwise somebody else does, or did.
func (l *life) close() (last bool) {
	for {
		n := l.state.Load()
		if n&lifeClosed != 0 {
			return false
		}
		if l.state.CompareAndSwap(n, n|lifeClosed) {
			return n == 0
		}
	}
}

// reopen takes back a close of which the caller is the last.
func (l *life) reopen() { l.state.Store(0) }

// owned is the part that all objects made from a context share. It holds the
// context until the object is destroyed.
type owned struct {
	ctx     *Context
	uses    life
	destroy func() error
}

// own takes over the use of ctx that the constructor, op, began.
func (o *owned) own(ctx *Context, op string, destroy func() error) {
	o.ctx, o.destroy = ctx, destroy
	opened(&o.uses, op)
}

func (o *owned) enter(op string) error {
	if o.uses.enter() {
		return nil
	}
	return closed(op, o.ctx.device.ordinal)
}

func (o *owned) leave() {
	if o.uses.leave() && o.end() != nil && o.uses.close() { // not if it was hopeless
		_ = o.end() // once more: nobody is left who could be told, or try later
	}
}

// end destroys the object. What the driver did not destroy stays open, so that
// it can be closed again, unless that is hopeless.
func (o *owned) end() error {
	err := o.destroy()
	if err != nil && !Hopeless(err) {
		o.uses.reopen()
		return err
	}
	ended(&o.uses)
	o.ctx.leave()
	return err
}

func (o *owned) close() error {
	if o.uses.close() {
		return o.end()
	}
	return nil
}

// fail turns a status into an error that names the object's device.
func (o *owned) fail(st driver.Status, op string) error {
	return failure(st, op, o.ctx.device.ordinal)
}

func closed(op string, device int) error {
	return &Error{Op: op, Device: device, Result: ErrClosed}
}
