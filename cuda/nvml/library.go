//go:build !nonvml && cgo && linux

package nvml

import (
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Library is the management library of NVIDIA (NVML), which Open has loaded.
type Library struct {
	api   nvml.Interface
	close sync.Once
	err   error
}

// Open loads and initialises the library.
//
// Errors: ErrUnavailable if the machine does not have the library, or does not have a driver that the library can use.
func Open() (*Library, error) { return open(nvml.New()) }

func open(api nvml.Interface) (*Library, error) {
	// api.Init returns the same code for every reason why a load fails.
	if r := api.Init(); r != nvml.SUCCESS {
		return nil, &Error{Op: "nvmlInit", Code: int(r), Detail: words(r), kind: ErrUnavailable}
	}
	return &Library{api: api}, nil
}

// Close shuts the library down. It may be called more than once.
func (l *Library) Close() error {
	l.close.Do(func() { l.err = failure("nvmlShutdown", l.api.Shutdown()) })
	return l.err
}

// DriverVersion returns the version of the kernel driver, for example "580.159.04".
func (l *Library) DriverVersion() (string, error) {
	v, r := l.api.SystemGetDriverVersion()
	return v, failure("nvmlSystemGetDriverVersion", r)
}

// Devices returns all GPUs that this process may see, in the order of their addresses on the PCI bus. The environment variable
// CUDA_VISIBLE_DEVICES has no effect on this list.
func (l *Library) Devices() ([]Device, error) {
	n, r := l.api.DeviceGetCount()
	if r != nvml.SUCCESS {
		return nil, failure("nvmlDeviceGetCount", r)
	}
	devices := make([]Device, 0, n)
	for i := range n {
		d, r := l.api.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			return nil, failure("nvmlDeviceGetHandleByIndex", r)
		}
		devices = append(devices, device{l.api, d})
	}
	return devices, nil
}

// has returns an error if the library has no function with the name in the parameter `symbol`. A method calls the function `has` before it calls
// a function of the library that may be missing, because a call of a missing function ends the process.
func has(api nvml.Interface, symbol string) error {
	if err := api.Extensions().LookupSymbol(symbol); err != nil {
		return &Error{Op: symbol, Detail: err.Error(), kind: ErrNotSupported}
	}
	return nil
}

func failure(op string, r nvml.Return) error {
	if r == nvml.SUCCESS {
		return nil
	}
	e := &Error{Op: op, Code: int(r), Detail: words(r)}
	switch r {
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_UNINITIALIZED:
		e.kind = ErrUnavailable
	case nvml.ERROR_NOT_FOUND, nvml.ERROR_GPU_IS_LOST:
		e.kind = ErrNotFound
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		e.kind = ErrNotSupported
	case nvml.ERROR_NO_PERMISSION:
		e.kind = ErrNoPermission
	}
	return e
}

// words returns the text of a return code. It does not call the library, because perhaps the library is not loaded.
func words(r nvml.Return) string {
	if r == nvml.ERROR_LIBRARY_NOT_FOUND {
		return "libnvidia-ml.so.1 cannot be opened"
	}
	return r.Error()
}
