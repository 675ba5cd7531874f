//go:build !nonvml && cgo && linux

package nvml

import (
	"errors"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// oneGPU returns a simulated management library of a machine with one GPU. This library does not
// have the functions that the parameter `missing` names.
func oneGPU(missing ...string) *mock.Interface {
	gpu := &mock.Device{
		GetUUIDFunc: func() (string, nvml.Return) { return "GPU-00112233-4455-6677-8899-aabbccddeeff", nvml.SUCCESS },
		GetNameFunc: func() (string, nvml.Return) { return "a GPU", nvml.SUCCESS },
		GetMemoryInfo_v2Func: func() (nvml.Memory_v2, nvml.Return) {
			return nvml.Memory_v2{Total: 100, Reserved: 10, Free: 60, Used: 30}, nvml.SUCCESS
		},
		GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) {
			return []nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 30}, {Pid: 8, UsedGpuMemory: ^uint64(0)}}, nvml.SUCCESS
		},
		GetComputeModeFunc: func() (nvml.ComputeMode, nvml.Return) {
			return nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, nvml.SUCCESS
		},
		GetMigModeFunc: func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED },
	}
	return &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return 1, nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(int) (nvml.Device, nvml.Return) { return gpu, nvml.SUCCESS },
		DeviceGetHandleByUUIDFunc: func(string) (nvml.Device, nvml.Return) {
			return nil, nvml.ERROR_NOT_FOUND
		},
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(name string) error {
				for _, m := range missing {
					if m == name {
						return errors.New("not in this library")
					}
				}
				return nil
			}}
		},
	}
}

func TestDevicesTellWhatTheLibraryTells(t *testing.T) {
	lib, err := open(oneGPU())
	require.NoError(t, err)
	devices, err := lib.Devices()
	require.NoError(t, err)
	require.Len(t, devices, 1)
	d := devices[0]

	uuid, err := d.UUID()
	require.NoError(t, err)
	assert.Equal(t, "GPU-00112233-4455-6677-8899-aabbccddeeff", uuid.String())
	m, err := d.Memory()
	require.NoError(t, err)
	assert.Equal(t, Memory{Total: 100, Free: 60, Used: 30, Reserved: 10}, m)
	mode, err := d.ComputeMode()
	require.NoError(t, err)
	assert.Equal(t, ComputeExclusiveProcess, mode)
	mig, err := d.MIGEnabled()
	require.NoError(t, err)
	assert.False(t, mig, "a GPU without MIG is not an error")
	processes, err := d.Processes()
	require.NoError(t, err)
	assert.Equal(t, []Process{{PID: 7, UsedBytes: 30}, {PID: 8}}, processes, "memory that is not told is 0")
}

func TestAMissingSymbolIsAnErrorAndNotTheEndOfTheProcess(t *testing.T) {
	lib, err := open(oneGPU("nvmlDeviceGetMemoryInfo_v2"))
	require.NoError(t, err)
	devices, err := lib.Devices()
	require.NoError(t, err)
	_, err = devices[0].Memory()
	assert.ErrorIs(t, err, ErrNotSupported)
}

func TestCloseShutsDownOnce(t *testing.T) {
	api := oneGPU()
	lib, err := open(api)
	require.NoError(t, err)
	require.NoError(t, lib.Close())
	require.NoError(t, lib.Close())
	assert.Len(t, api.ShutdownCalls(), 1)
}
