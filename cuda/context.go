package cuda

import (
	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// Context is a CUDA context of a device. [Device.Retain] returns the primary context, and [Device.NewContext] makes a separate context. Several
// parts of a process can retain the primary context. The driver keeps it until each of them has released it. A Context is safe for concurrent
// use.
type Context struct {
	device Device
	handle uintptr
	second bool // a separate context, not the primary one
	uses   life
}

// Retain retains the device's primary context, and creates it if it does not exist yet. To create the context, the driver needs some tenths of a
// second and some hundred MiB of device memory.
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

// NewContext makes a separate context in addition to the primary context. Programs rarely need a separate context. It has two disadvantages:
// Other libraries do not use it. A program cannot open the legacy handle of a block in it while memory of the same block is open in the primary
// context.
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

// Close releases the context. Objects that were made from the context still work: Close returns at once, and the driver's context is released
// when the last of these objects is closed. If Close fails, the caller can call Close again.
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

// do makes one call of the driver, which op names, while the context is in use.
func (c *Context) do(op string, call func() driver.Status) error {
	if err := c.enter(op); err != nil {
		return err
	}
	defer c.leave()
	return c.fail(call(), op)
}

// Device returns the device of the context.
func (c *Context) Device() Device { return c.device }

// Synchronize waits until the device has done all work of this context. If this work has failed, Synchronize returns the error.
func (c *Context) Synchronize() error {
	return c.do("Context.Synchronize", func() driver.Status { return driver.CtxSynchronize(c.handle) })
}

// MemInfo returns how many bytes of the device's memory are free, and how many bytes the device's memory has in total.
func (c *Context) MemInfo() (free, total uint64, err error) {
	const op = "Context.MemInfo"
	if err := c.enter(op); err != nil {
		return 0, 0, err
	}
	defer c.leave()
	free, total, st := driver.MemInfo(c.handle)
	return free, total, c.fail(st, op)
}
