package cuda

import (
	"runtime"
	"unsafe"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// HostRegisterFlags are CU_MEMHOSTREGISTER_*.
type HostRegisterFlags uint32

// How host memory is registered.
const (
	HostPortable  HostRegisterFlags = 1 // for the contexts of all devices
	HostDeviceMap HostRegisterFlags = 2 // the GPU gets an address for it
	// The GPU only reads it, which a mapping that is read-only needs. Work that
	// writes it is accepted and then ruins the context: ErrLaunchFailed.
	HostReadOnly HostRegisterFlags = 8
)

// HostRegistration is host memory that was made known to the driver.
type HostRegistration struct {
	owned
	mem []byte
	ptr DevicePtr
}

// RegisterHost page-locks memory that exists, so that the GPU can use it. It must
// be whole pages, mapped by mmap: Go's own memory must not be given, for the
// collector would take it back while the GPU uses it.
//
// Errors: ErrHostMemoryAlreadyRegistered; ErrOutOfMemory where RLIMIT_MEMLOCK or
// the driver sets a bound.
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

// Close ends the registration. The memory may be unmapped after that, not before.
func (r *HostRegistration) Close() error { return r.close() }

// DevicePtr is the address that the GPU uses, 0 without HostDeviceMap.
func (r *HostRegistration) DevicePtr() DevicePtr { return r.ptr }

// Bytes is the memory that was registered.
func (r *HostRegistration) Bytes() []byte { return r.mem }
