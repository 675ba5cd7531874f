package cuda

import "errors"

// handleTypePOSIXFD is CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, a bit of AttrMemPoolSupportedHandleTypes.
const handleTypePOSIXFD = 1

// SupportsMemPools reports whether the device has stream-ordered memory pools.
func (d Device) SupportsMemPools() (bool, error) { return d.has(AttrMemoryPoolsSupported) }

// SupportsPOSIXFDPools reports whether the memory pools of the device can be exported as file descriptors.
func (d Device) SupportsPOSIXFDPools() (bool, error) {
	v, err := d.known(AttrMemPoolSupportedHandleTypes)
	return v&handleTypePOSIXFD != 0, err
}

// SupportsVMM reports whether the device has virtual memory management, with allocations that can be exported as file descriptors.
func (d Device) SupportsVMM() (bool, error) {
	return d.all(AttrVirtualMemoryManagementSupported, AttrHandleTypePOSIXFDSupported)
}

// SupportsLegacyIPC reports whether processes can share memory of the device with [Context.IPCMemHandle]. The driver has no attribute for legacy
// IPC. NVIDIA's guide says that legacy IPC needs unified addressing, and that integrated GPUs do not support legacy IPC. SupportsLegacyIPC
// checks these two conditions.
func (d Device) SupportsLegacyIPC() (bool, error) {
	integrated, err := d.has(AttrIntegrated)
	if err != nil || integrated {
		return false, err
	}
	return d.has(AttrUnifiedAddressing)
}

// SupportsIPCEvents reports whether processes can share events of the device. But a process can open an event of another process only if both
// processes belong to the same user and share /dev/shm. Otherwise OpenEvent fails with ErrMapFailed.
func (d Device) SupportsIPCEvents() (bool, error) { return d.has(AttrIPCEventSupported) }

// SupportsHostNUMAPools reports whether a memory pool can be on a NUMA node of the host: on the node that is closest to the device.
func (d Device) SupportsHostNUMAPools() (bool, error) {
	node, err := d.HostNUMANode()
	if errors.Is(err, ErrInvalidValue) {
		return false, nil
	}
	if err != nil || node < 0 {
		return false, err
	}
	v, err := d.Attribute(AttrHostNUMAMemoryPoolsSupported)
	if errors.Is(err, ErrInvalidValue) {
		// Drivers of CUDA 12 have pools on NUMA nodes, but do not know AttrHostNUMAMemoryPoolsSupported.
		return d.SupportsMemPools()
	}
	return v != 0, err
}

// SupportsStreamMemOps reports whether streams of the device can write 64-bit words and wait for them: [Stream.WriteValue64] and
// [Stream.WaitValue64GEQ].
func (d Device) SupportsStreamMemOps() (bool, error) { return d.has(AttrCanUse64BitStreamMemOps) }

// SupportsHostRegister reports whether [Context.RegisterHost] can register host memory for the device. The result readOnly reports whether
// RegisterHost can also register memory that is mapped read-only.
func (d Device) SupportsHostRegister() (ok, readOnly bool, err error) {
	if ok, err = d.has(AttrHostRegisterSupported); err != nil {
		return false, false, err
	}
	readOnly, err = d.has(AttrReadOnlyHostRegisterSupported)
	return ok, readOnly, err
}

// known returns the attribute's value, or 0 if the driver does not know the attribute.
func (d Device) known(a DeviceAttribute) (int, error) {
	v, err := d.Attribute(a)
	if errors.Is(err, ErrInvalidValue) {
		return 0, nil
	}
	return v, err
}

func (d Device) has(a DeviceAttribute) (bool, error) {
	v, err := d.known(a)
	return v != 0, err
}

func (d Device) all(attributes ...DeviceAttribute) (bool, error) {
	for _, a := range attributes {
		if ok, err := d.has(a); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}
