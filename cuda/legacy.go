package cuda

import "github.com/poolbridge/poolbridge/cuda/internal/driver"

// IPCMemHandle identifies memory from [Context.Malloc] in other processes.
type IPCMemHandle [64]byte

// Malloc allocates device memory outside of all pools. Legacy IPC and stream
// memory operations need such memory. Malloc can wait for all work of the
// device.
//
// Errors: ErrOutOfMemory.
func (c *Context) Malloc(size uint64) (DevicePtr, error) {
	const op = "Context.Malloc"
	if err := c.enter(op); err != nil {
		return 0, err
	}
	defer c.leave()
	ptr, st := driver.MemAlloc(c.handle, size)
	return DevicePtr(ptr), c.fail(st, op)
}

// MFree frees memory from Malloc. MFree waits for all work of the device.
func (c *Context) MFree(ptr DevicePtr) error {
	const op = "Context.MFree"
	if err := c.enter(op); err != nil {
		return err
	}
	defer c.leave()
	return c.fail(driver.MemFree(c.handle, uint64(ptr)), op)
}

// AddressRange returns the beginning and the size in bytes of the allocation
// that ptr points into.
//
// Errors: ErrNotFound if ptr points into no allocation.
func (c *Context) AddressRange(ptr DevicePtr) (base DevicePtr, size uint64, err error) {
	const op = "Context.AddressRange"
	if err := c.enter(op); err != nil {
		return 0, 0, err
	}
	defer c.leave()
	b, size, st := driver.AddressRange(c.handle, uint64(ptr))
	return DevicePtr(b), size, c.fail(st, op)
}

// IPCMemHandle returns a handle with which other processes open the allocation
// that ptr points into. A process that opens the handle gets the address of the
// whole allocation. So send the offset of ptr along with the handle: ptr minus
// the base that AddressRange returns.
//
// Errors: ErrInvalidValue for memory that is not from Malloc.
func (c *Context) IPCMemHandle(ptr DevicePtr) (IPCMemHandle, error) {
	const op = "Context.IPCMemHandle"
	if err := c.enter(op); err != nil {
		return IPCMemHandle{}, err
	}
	defer c.leave()
	h, st := driver.IPCMemHandle(c.handle, uint64(ptr))
	return IPCMemHandle(h), c.fail(st, op)
}

// OpenIPCMem maps an allocation of another process, and returns the address of
// its beginning in this process.
//
// Errors: ErrInvalidHandle if the process that owns the allocation is dead;
// ErrInvalidContext in the owning process itself.
func (c *Context) OpenIPCMem(handle IPCMemHandle) (DevicePtr, error) {
	const op = "Context.OpenIPCMem"
	if err := c.enter(op); err != nil {
		return 0, err
	}
	defer c.leave()
	ptr, st := driver.IPCOpenMem(c.handle, (*[64]byte)(&handle))
	return DevicePtr(ptr), c.fail(st, op)
}

// CloseIPCMem unmaps memory from OpenIPCMem.
func (c *Context) CloseIPCMem(ptr DevicePtr) error {
	const op = "Context.CloseIPCMem"
	if err := c.enter(op); err != nil {
		return err
	}
	defer c.leave()
	return c.fail(driver.IPCCloseMem(c.handle, uint64(ptr)), op)
}
