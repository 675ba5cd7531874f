package cuda

import (
	"runtime"
	"unsafe"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// HostRegisterFlags are CU_MEMHOSTREGISTER_*.
type HostRegisterFlags uint32

// Flags for registering host memory.
const (
	HostPortable  HostRegisterFlags = 1 // registered for the contexts of all devices
	HostDeviceMap HostRegisterFlags = 2 // the GPU gets an address for the memory
	// The GPU only reads the memory. A read-only mapping needs this flag. The
	// driver accepts work that writes the memory, but that work breaks the
	// context: ErrLaunchFailed.
	HostReadOnly HostRegisterFlags = 8
)

// HostRegistration is host memory that is registered with the driver.
type HostRegistration struct {
	owned
	mem []byte
	ptr DevicePtr
}

// RegisterHost page-locks existing memory so that the GPU can use it. The
// memory must be whole pages from mmap. It must not be memory of the Go heap:
// the garbage collector would free that memory while the GPU uses it.
//
// Errors: ErrHostMemoryAlreadyRegistered; ErrOutOfMemory if RLIMIT_MEMLOCK or a
// limit of the driver is reached.
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

// Close ends the registration. The caller may unmap the memory only after
// Close.
func (r *HostRegistration) Close() error { return r.close() }

// DevicePtr returns the address that the GPU uses, or 0 without HostDeviceMap.
func (r *HostRegistration) DevicePtr() DevicePtr { return r.ptr }

// Bytes returns the registered memory.
func (r *HostRegistration) Bytes() []byte { return r.mem }
