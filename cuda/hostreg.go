package cuda

import (
	"runtime"
	"unsafe"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// HostRegisterFlags are flags of [Context.RegisterHost]: CU_MEMHOSTREGISTER_* of the driver.
type HostRegisterFlags uint32

// These are the flags for registering host memory.
const (
	HostPortable  HostRegisterFlags = 1 // registered for the contexts of all devices
	HostDeviceMap HostRegisterFlags = 2 // the GPU gets an address for the memory
	// With HostReadOnly, the GPU may only read the memory. If the memory is mapped read-only, the driver can register it only with this flag. If
	// the program queues work that writes the memory, the driver accepts the work. But when the work runs, it fails with ErrLaunchFailed and the
	// context is broken.
	HostReadOnly HostRegisterFlags = 8
)

// HostRegistration is host memory that is registered with the driver.
type HostRegistration struct {
	owned
	mem []byte
	ptr DevicePtr
}

// RegisterHost page-locks the memory `mem`, so that the GPU can use it. The memory must be whole pages from mmap. It must not be memory of the
// Go heap, because the garbage collector could free that memory while the GPU uses it.
//
// Errors: ErrHostMemoryAlreadyRegistered; ErrOutOfMemory if RLIMIT_MEMLOCK or a limit of the driver is reached.
func (c *Context) RegisterHost(mem []byte, flags HostRegisterFlags) (*HostRegistration, error) {
	const op = "Context.RegisterHost"
	if len(mem) == 0 {
		return nil, invalid(op, c.device.ordinal, "no bytes")
	}
	if err := c.enter(op); err != nil {
		return nil, err
	}
	addr := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	ptr, st := driver.HostRegister(c.handle, addr, uint64(len(mem)), uint32(flags))
	runtime.KeepAlive(mem)
	if st != 0 {
		defer c.leave()
		return nil, c.fail(st, op)
	}
	r := &HostRegistration{mem: mem, ptr: DevicePtr(ptr)}
	r.own(c, op, func() error { return c.fail(driver.HostUnregister(c.handle, addr), "HostRegistration.Close") })
	return r, nil
}

// Close ends the registration. The caller may unmap the memory only after Close.
func (r *HostRegistration) Close() error { return r.close() }

// DevicePtr returns the address that the GPU uses for the memory. If the memory was registered without HostDeviceMap, it returns 0.
func (r *HostRegistration) DevicePtr() DevicePtr { return r.ptr }

// Bytes returns the registered memory.
func (r *HostRegistration) Bytes() []byte { return r.mem }
