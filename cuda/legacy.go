package cuda

import "github.com/poolbridge/poolbridge/cuda/internal/driver"

// IPCMemHandle is the handle with which other processes open memory from [Context.Malloc].
type IPCMemHandle [64]byte

// Malloc allocates device memory outside of all pools. Legacy IPC ([Context.IPCMemHandle]) needs such memory. Stream memory operations on device
// memory need such memory too. Malloc may wait until the device has done all its work.
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
	return c.do("Context.MFree", func() driver.Status { return driver.MemFree(c.handle, uint64(ptr)) })
}

// AddressRange finds the allocation that contains the address ptr. It returns the beginning of this allocation and its size in bytes.
//
// Errors: ErrNotFound if no allocation contains ptr.
func (c *Context) AddressRange(ptr DevicePtr) (base DevicePtr, size uint64, err error) {
	const op = "Context.AddressRange"
	if err := c.enter(op); err != nil {
		return 0, 0, err
	}
	defer c.leave()
	b, size, st := driver.AddressRange(c.handle, uint64(ptr))
	return DevicePtr(b), size, c.fail(st, op)
}

// IPCMemHandle returns a handle with which other processes open the allocation that contains the address ptr. A process that opens the handle
// gets the address of the beginning of the allocation. So the caller must also send the offset of ptr, which is ptr minus the base that
// AddressRange returns.
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

// OpenIPCMem maps an allocation of another process into this process, and returns the address at which the mapping begins.
//
// Errors: ErrInvalidHandle if the process that owns the allocation is dead; ErrInvalidContext if this process itself owns the allocation.
func (c *Context) OpenIPCMem(handle IPCMemHandle) (DevicePtr, error) {
	const op = "Context.OpenIPCMem"
	if err := c.enter(op); err != nil {
		return 0, err
	}
	defer c.leave()
	ptr, st := driver.IPCOpenMem(c.handle, (*[64]byte)(&handle))
	return DevicePtr(ptr), c.fail(st, op)
}

// CloseIPCMem unmaps memory that OpenIPCMem mapped.
func (c *Context) CloseIPCMem(ptr DevicePtr) error {
	return c.do("Context.CloseIPCMem", func() driver.Status { return driver.IPCCloseMem(c.handle, uint64(ptr)) })
}
