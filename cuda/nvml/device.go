//go:build !nonvml && cgo && linux

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/poolbridge/poolbridge/cuda"
)

type device struct {
	api nvml.Interface
	d   nvml.Device
}

func (d device) UUID() (cuda.UUID, error) {
	s, r := d.d.GetUUID()
	if r != nvml.SUCCESS {
		return cuda.UUID{}, failure("nvmlDeviceGetUUID", r)
	}
	return cuda.ParseUUID(s)
}

func (d device) Name() (string, error) {
	s, r := d.d.GetName()
	return s, failure("nvmlDeviceGetName", r)
}

func (d device) Memory() (Memory, error) {
	const op = "nvmlDeviceGetMemoryInfo_v2"
	if err := has(d.api, op); err != nil {
		return Memory{}, err
	}
	m, r := d.d.GetMemoryInfo_v2()
	return Memory{Total: m.Total, Free: m.Free, Used: m.Used, Reserved: m.Reserved}, failure(op, r)
}

func (d device) Processes() ([]Process, error) {
	list, r := d.d.GetComputeRunningProcesses()
	if r != nvml.SUCCESS {
		return nil, failure("nvmlDeviceGetComputeRunningProcesses", r)
	}
	processes := make([]Process, 0, len(list))
	for _, p := range list {
		used := p.UsedGpuMemory
		if used == unknownBytes {
			used = 0
		}
		processes = append(processes, Process{PID: int(p.Pid), UsedBytes: used})
	}
	return processes, nil
}

// unknownBytes is NVML_VALUE_NOT_AVAILABLE in 64 bits.
const unknownBytes = ^uint64(0)

func (d device) ComputeMode() (ComputeMode, error) {
	m, r := d.d.GetComputeMode()
	return ComputeMode(m), failure("nvmlDeviceGetComputeMode", r)
}

func (d device) MIGEnabled() (bool, error) {
	current, _, r := d.d.GetMigMode()
	if r == nvml.ERROR_NOT_SUPPORTED {
		return false, nil // the GPU cannot be split
	}
	return current == nvml.DEVICE_MIG_ENABLE, failure("nvmlDeviceGetMigMode", r)
}
