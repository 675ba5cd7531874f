package cuda

import "github.com/poolbridge/poolbridge/cuda/internal/driver"

// IPCMemHandle names legacy memory to other processes.
type IPCMemHandle [64]byte

// Malloc allocates device memory outside all pools: memory that legacy IPC and
// stream memory operations work on. It can wait for the whole device.
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

// MFree frees what Malloc gave. It waits for the whole device.
func (c *Context) MFree(ptr DevicePtr) error {
	const op = "Context.MFree"
	if err := c.enter(op); err != nil {
		return err
	}
	defer c.leave()
	return c.fail(driver.MemFree(c.handle, uint64(ptr)), op)
}

// AddressRange is the allocation that ptr points into: its beginning, and its
// size in bytes.
//
// Errors: ErrNotFound when there is none.
func (c *Context) AddressRange(ptr DevicePtr) (base DevicePtr, size uint64, err error) {
	const op = "Context.AddressRange"
	if err := c.enter(op); err != nil {
		return 0, 0, err
	}
	defer c.leave()
	b, size, st := driver.AddressRange(c.handle, uint64(ptr))
	return DevicePtr(b), size, c.fail(st, op)
}

// IPCMemHandle names the allocation that ptr points into to other processes. It
// names it as a whole, and opens at its beginning: send the offset of ptr from
// the base that AddressRange gives along with it.
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

// OpenIPCMem maps an allocation of another process and gives its beginning.
//
// Errors: ErrInvalidHandle when the process that owns it is dead;
// ErrInvalidContext in that process itself.
func (c *Context) OpenIPCMem(handle IPCMemHandle) (DevicePtr, error) {
	const op = "Context.OpenIPCMem"
	if err := c.enter(op); err != nil {
		return 0, err
	}
	defer c.leave()
	ptr, st := driver.IPCOpenMem(c.handle, (*[64]byte)(&handle))
	return DevicePtr(ptr), c.fail(st, op)
}

// CloseIPCMem ends what OpenIPCMem began.
func (c *Context) CloseIPCMem(ptr DevicePtr) error {
	const op = "Context.CloseIPCMem"
	if err := c.enter(op); err != nil {
		return err
	}
	defer c.leave()
	return c.fail(driver.IPCCloseMem(c.handle, uint64(ptr)), op)
}
