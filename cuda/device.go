package cuda

import (
	"fmt"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// Device identifies a GPU with its ordinal in this process. It is a plain value and owns no resources. Two Devices are equal if they are the
// same GPU. The zero Device is the first GPU.
type Device struct {
	ordinal int
	handle  int32
}

// DeviceCount returns the number of GPUs that this process sees.
func DeviceCount() (int, error) {
	if err := Init(); err != nil {
		return 0, err
	}
	n, st := driver.DeviceCount()
	return n, failure(st, "DeviceCount", noDevice)
}

// DeviceAt returns the GPU with this ordinal. The first GPU has the ordinal 0.
//
// Errors: ErrInvalidDevice if no GPU has this ordinal.
func DeviceAt(ordinal int) (Device, error) {
	if err := Init(); err != nil {
		return Device{}, err
	}
	h, st := driver.DeviceGet(ordinal)
	if st != 0 {
		return Device{}, failure(st, "DeviceAt", ordinal)
	}
	return Device{ordinal: ordinal, handle: h}, nil
}

// Devices returns all GPUs that this process sees, in the order of their ordinals.
func Devices() ([]Device, error) {
	n, err := DeviceCount()
	if err != nil {
		return nil, err
	}
	devices := make([]Device, 0, n)
	for i := range n {
		d, err := DeviceAt(i)
		if err != nil {
			return nil, err
		}
		devices = append(devices, d)
	}
	return devices, nil
}

// DeviceByUUID returns the GPU with this UUID.
//
// Errors: ErrInvalidDevice if this process does not see such a GPU.
func DeviceByUUID(uuid UUID) (Device, error) {
	devices, err := Devices()
	if err != nil {
		return Device{}, err
	}
	for _, d := range devices {
		u, err := d.UUID()
		if err != nil {
			return Device{}, err
		}
		if u == uuid {
			return d, nil
		}
	}
	return Device{}, &Error{Op: "DeviceByUUID", Device: noDevice, Result: ErrInvalidDevice, Detail: "no visible device is " + uuid.String()}
}

// Ordinal returns the number of the device in this process, counted from 0.
func (d Device) Ordinal() int { return d.ordinal }

// String returns "cuda:" and the ordinal.
func (d Device) String() string { return fmt.Sprintf("cuda:%d", d.ordinal) }

// Name returns the device's name, for example "NVIDIA H200".
func (d Device) Name() (string, error) {
	if err := Init(); err != nil {
		return "", err
	}
	name, st := driver.DeviceName(d.handle)
	return name, failure(st, "Name", d.ordinal)
}

// UUID returns the device's UUID, which is the same in every process.
func (d Device) UUID() (UUID, error) {
	if err := Init(); err != nil {
		return UUID{}, err
	}
	u, st := driver.DeviceUUID(d.handle)
	return UUID(u), failure(st, "UUID", d.ordinal)
}

// TotalMem returns the size of the device's memory in bytes.
func (d Device) TotalMem() (uint64, error) {
	if err := Init(); err != nil {
		return 0, err
	}
	n, st := driver.DeviceTotalMem(d.handle)
	return n, failure(st, "TotalMem", d.ordinal)
}

// PCIBusID returns the device's address on the PCI bus, in the form "domain:bus:device.function" with hexadecimal digits.
func (d Device) PCIBusID() (string, error) {
	if err := Init(); err != nil {
		return "", err
	}
	id, st := driver.DevicePCIBusID(d.handle)
	return id, failure(st, "PCIBusID", d.ordinal)
}

// CanAccessPeer reports whether `d` can access the memory of `peer`. The result is false if `peer` is `d` itself.
func (d Device) CanAccessPeer(peer Device) (bool, error) {
	if err := Init(); err != nil {
		return false, err
	}
	can, st := driver.DeviceCanAccessPeer(d.handle, peer.handle)
	return can, failure(st, "CanAccessPeer", d.ordinal)
}
