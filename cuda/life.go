package cuda

import (
	"sync/atomic"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// life counts the calls that are using an object. So one goroutine can close the object while other goroutines are still using it: the goroutine
// whose use ends last destroys the object.
type life struct{ state atomic.Int64 }

const lifeClosed = 1 << 62

// enter begins a use of the object. If the object is closed, enter returns false and no use begins.
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

// leave ends a use of the object. If last is true, the object is closed and this was its last use: the caller must destroy the object.
func (l *life) leave() (last bool) { return l.state.Add(-1) == lifeClosed }

// close closes the object, so that no further use can begin. If last is true, nothing uses the object, and the caller must destroy it. If last
// is false, either the object is already destroyed, or the goroutine that ends the last use destroys it.
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

// reopen undoes a close that returned true.
func (l *life) reopen() { l.state.Store(0) }

// owned is the common part of all objects that a method of a context makes. The context stays in use until the object is destroyed.
type owned struct {
	ctx     *Context
	uses    life
	destroy func() error
}

// own begins the object's life. The constructor has begun a use of ctx; this use ends when the object is closed. op names the constructor.
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
	if o.uses.leave() && o.end() != nil && o.uses.close() { // uses.close succeeds only if end has reopened the object
		_ = o.end() // second and last try: no caller is left that could try again later
	}
}

// end destroys the object. If the driver returns an error, the object stays open, so that the caller can call Close again. After a hopeless
// error (see [Hopeless]), the object counts as destroyed.
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

// do makes one call of the driver, which op names, while the object is in use.
func (o *owned) do(op string, call func() driver.Status) error {
	if err := o.enter(op); err != nil {
		return err
	}
	defer o.leave()
	return o.fail(call(), op)
}

func closed(op string, device int) error {
	return &Error{Op: op, Device: device, Result: ErrClosed}
}
