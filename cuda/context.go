package cuda

import (
	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// Context is a device's primary context, retained: the driver keeps it until
// every holder in the process has let go of it. Or it is a context of its own,
// made by [Device.NewContext]. It is safe for concurrent use.
type Context struct {
	device Device
	handle uintptr
	second bool // not the primary one
	uses   life
}

// Retain retains the device's primary context, which is created if need be;
// that takes tenths of a second and some hundred MiB of device memory.
func (d Device) Retain() (*Context, error) {
	if err := Init(); err != nil {
		return nil, err
	}
	h, st := driver.PrimaryRetain(d.handle)
	if st != 0 {
		return nil, failure(st, "Retain", d.ordinal)
	}
	c := &Context{device: d, handle: h}
	opened(&c.uses, "Device.Retain")
	return c, nil
}

// NewContext makes a context of its own beside the primary one. Little needs it:
// a legacy handle cannot be opened in it while memory of the same block is open
// in the primary one, and other libraries do not see it.
func (d Device) NewContext() (*Context, error) {
	if err := Init(); err != nil {
		return nil, err
	}
	h, st := driver.CtxCreate(d.handle)
	if st != 0 {
		return nil, failure(st, "NewContext", d.ordinal)
	}
	c := &Context{device: d, handle: h, second: true}
	opened(&c.uses, "Device.NewContext")
	return c, nil
}

// Primary reports whether this is the device's primary context.
func (c *Context) Primary() bool { return !c.second }

// Close lets go of the context. Objects made from it go on working: the driver's
// context is released when the last of them is closed. After an error the
// context can be closed again.
func (c *Context) Close() error {
	if c.uses.close() {
		return c.release()
	}
	return nil
}

func (c *Context) release() error {
	var st driver.Status
	if c.second {
		st = driver.CtxDestroy(c.handle)
	} else {
		st = driver.PrimaryRelease(c.device.handle)
	}
	err := failure(st, "Context.Close", c.device.ordinal)
	if err != nil && !Hopeless(err) {
		c.uses.reopen()
		return err
	}
	ended(&c.uses)
	return err
}

func (c *Context) enter(op string) error {
	if c.uses.enter() {
		return nil
	}
	return closed(op, c.device.ordinal)
}

func (c *Context) leave() {
	if c.uses.leave() && c.release() != nil && c.uses.close() {
		_ = c.release() // once more: nobody is left who could be told, or try later
	}
}

func (c *Context) fail(st driver.Status, op string) error {
	return failure(st, op, c.device.ordinal)
}

// Device is the device whose context this is.
func (c *Context) Device() Device { return c.device }

// Synchronize waits until all work of this process on the device is done. It
// reports errors of earlier work.
func (c *Context) Synchronize() error {
	const op = "Context.Synchronize"
	if err := c.enter(op); err != nil {
		return err
	}
	defer c.leave()
	return c.fail(driver.CtxSynchronize(c.handle), op)
}

// MemInfo is the device's memory in bytes, and how much of it no process uses.
func (c *Context) MemInfo() (free, total uint64, err error) {
	const op = "Context.MemInfo"
	if err := c.enter(op); err != nil {
		return 0, 0, err
	}
	defer c.leave()
	free, total, st := driver.MemInfo(c.handle)
	return free, total, c.fail(st, op)
}
