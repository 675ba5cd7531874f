// Package nvml asks NVIDIA's management library (NVML) for facts that the driver API does not report: which processes use a GPU, and how the GPU
// is configured.
//
// This package is separate from package cuda, so that a program can use package cuda without NVML. A build with the tag nonvml or without cgo
// has the same API, but every call of Open returns [ErrUnavailable].
//
// This package uses the Go module go-nvml. The library may be missing when a program starts. So a program that contains this package must
// resolve a symbol of the library only when the program first uses the symbol. To make sure of this, link the program with
//
//	go build -ldflags '-extldflags=-Wl,-z,lazy'
//
// if the linker's default is -z now. Otherwise the program ends before main.
package nvml

import (
	"errors"

	"github.com/poolbridge/poolbridge/cuda"
)

// The method Unwrap of an [*Error] returns one of these errors, or nil.
var (
	ErrUnavailable  = errors.New("management library not available")
	ErrNotFound     = errors.New("no such device")
	ErrNotSupported = errors.New("not supported")
	ErrNoPermission = errors.New("no permission")
)

// Error is a failed call.
type Error struct {
	Op     string // name of the call
	Code   int    // the nvmlReturn_t, 0 if the library was not reached
	Detail string // text of the library
	kind   error  // one of the Err values of this package, or nil
}

func (e *Error) Error() string {
	s := "nvml: " + e.Op
	if e.kind != nil {
		s += ": " + e.kind.Error()
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap returns one of the Err values of this package, for [errors.Is], or nil.
func (e *Error) Unwrap() error { return e.kind }

// Memory is a device's memory in bytes.
type Memory struct {
	Total    uint64
	Free     uint64
	Used     uint64 // used by processes
	Reserved uint64 // used by the driver and the firmware
}

// Process is a process that uses a device for computing.
type Process struct {
	PID       int    // the id that the driver sees; in a container, the process often has another id or is missing from the list
	UsedBytes uint64 // device memory; 0 if the system does not report it
}

// ComputeMode says which processes may create contexts on a device.
type ComputeMode int

// These are the compute modes. The numbers are those of the library.
const (
	ComputeDefault          ComputeMode = 0 // any process
	ComputeProhibited       ComputeMode = 2 // no process
	ComputeExclusiveProcess ComputeMode = 3 // one process; sharing between processes needs MPS
)

// String returns the mode's name as nvidia-smi prints it.
func (m ComputeMode) String() string {
	switch m {
	case ComputeDefault:
		return "Default"
	case ComputeProhibited:
		return "Prohibited"
	case ComputeExclusiveProcess:
		return "Exclusive_Process"
	}
	return "Unknown"
}

// Device is a GPU of the machine. CUDA may see the GPU or not.
type Device interface {
	UUID() (cuda.UUID, error)
	Name() (string, error)
	Memory() (Memory, error)
	Processes() ([]Process, error)
	ComputeMode() (ComputeMode, error)
	// MIGEnabled reports whether MIG, the mode that splits the GPU into instances, is on now.
	MIGEnabled() (bool, error)
}
