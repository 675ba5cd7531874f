// Package nvml asks NVIDIA's management library what the driver API does not
// tell: who uses a GPU and how it is configured.
//
// It is apart from package cuda so that a program can do without it. Built with
// the tag nonvml, or without cgo, it has the same API and answers every Open
// with [ErrUnavailable].
//
// The binding underneath leaves its symbols to be resolved when they are used.
// A program that contains it must be linked with
//
//	go build -ldflags '-extldflags=-Wl,-z,lazy'
//
// where the linker's default is -z now, or it ends before main.
package nvml

import (
	"errors"

	"github.com/poolbridge/poolbridge/cuda"
)

// What an [*Error] can unwrap to.
var (
	ErrUnavailable  = errors.New("management library not available")
	ErrNotFound     = errors.New("no such device")
	ErrNotSupported = errors.New("not supported")
	ErrNoPermission = errors.New("no permission")
)

// Error is how a call failed.
type Error struct {
	Op     string // the call
	Code   int    // the nvmlReturn_t, 0 if the library was not reached
	Detail string // the library's own words
	kind   error  // one of the sentinels, or nil
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

// Unwrap gives one of the sentinels of this package, or nil.
func (e *Error) Unwrap() error { return e.kind }

// Memory is a device's memory in bytes.
type Memory struct {
	Total    uint64
	Free     uint64
	Used     uint64 // by processes
	Reserved uint64 // by the driver and the firmware
}

// Process is a process that computes on a device.
type Process struct {
	PID       int    // as the driver sees it: in a container often another, or not shown at all
	UsedBytes uint64 // device memory; 0 when the system does not tell
}

// ComputeMode is who may create contexts on a device.
type ComputeMode int

// The modes, by their numbers in the library.
const (
	ComputeDefault          ComputeMode = 0 // anybody
	ComputeProhibited       ComputeMode = 2 // nobody
	ComputeExclusiveProcess ComputeMode = 3 // one process: sharing between processes needs MPS
)

// String is the mode's name as nvidia-smi prints it.
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

// Device is a GPU of the machine, visible to CUDA or not.
type Device interface {
	UUID() (cuda.UUID, error)
	Name() (string, error)
	Memory() (Memory, error)
	Processes() ([]Process, error)
	ComputeMode() (ComputeMode, error)
	// MIGEnabled reports whether the GPU is split into instances now.
	MIGEnabled() (bool, error)
}
