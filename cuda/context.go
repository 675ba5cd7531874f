package cuda

import (
	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// Context is a context of a device: the primary context, from [Device.Retain],
// or a separate context, from [Device.NewContext]. The driver keeps the primary
// context until every holder in the process has released it. A Context is safe
// for concurrent use.
type Context struct {
	device Device
	handle uintptr
	second bool // a separate context, not the primary one
	uses   life
}

// Retain retains the device's primary context, and creates it if it does not
// exist yet. The creation takes tenths of a second and some hundred MiB of
// device memory.
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

// NewContext makes a separate context beside the primary one. A separate
// context is rarely needed, and has two limits. Other libraries do not use it.
// A legacy handle cannot be opened in it while memory of the same block is open
// in the primary context.
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

// Primary reports whether c is the device's primary context.
func (c *Context) Primary() bool { return !c.second }

// Close releases the context. Objects that were made from the context keep
// working: the driver's context is released when the last of these objects is
// closed. If Close fails, the caller can call it again.
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
		_ = c.release() // second and last try: no caller is left that could try again later
	}
}

func (c *Context) fail(st driver.Status, op string) error {
	return failure(st, op, c.device.ordinal)
}

// Device returns the device of the context.
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

// MemInfo returns the size of the device's memory, and how much of that memory
// is free, in bytes.
func (c *Context) MemInfo() (free, total uint64, err error) {
	const op = "Context.MemInfo"
	if err := c.enter(op); err != nil {
		return 0, 0, err
	}
	defer c.leave()
	free, total, st := driver.MemInfo(c.handle)
	return free, total, c.fail(st, op)
}
