package cuda

import "github.com/poolbridge/poolbridge/cuda/internal/driver"

// DeviceAttribute is the number of an attribute of a device (CUdevice_attribute). [Device.Attribute] accepts every number. Only the attributes
// that this project needs have constants.
type DeviceAttribute int

// These are the attributes that this project needs. The numbers are those of the driver API.
const (
	AttrMultiprocessorCount              DeviceAttribute = 16
	AttrIntegrated                       DeviceAttribute = 18
	AttrUnifiedAddressing                DeviceAttribute = 41
	AttrComputeCapabilityMajor           DeviceAttribute = 75
	AttrComputeCapabilityMinor           DeviceAttribute = 76
	AttrHostRegisterSupported            DeviceAttribute = 99
	AttrVirtualMemoryManagementSupported DeviceAttribute = 102
	AttrHandleTypePOSIXFDSupported       DeviceAttribute = 103
	AttrReadOnlyHostRegisterSupported    DeviceAttribute = 113
	AttrMemoryPoolsSupported             DeviceAttribute = 115
	AttrMemPoolSupportedHandleTypes      DeviceAttribute = 119
	AttrCanUse64BitStreamMemOps          DeviceAttribute = 122
	AttrIPCEventSupported                DeviceAttribute = 125
	AttrMPSEnabled                       DeviceAttribute = 133
	AttrHostNUMAID                       DeviceAttribute = 134
	AttrHostNUMAMemoryPoolsSupported     DeviceAttribute = 142
)

// Attribute returns the value of the attribute `a` of the device.
//
// Errors: ErrInvalidValue for an attribute that the driver does not know.
func (d Device) Attribute(a DeviceAttribute) (int, error) {
	if err := Init(); err != nil {
		return 0, err
	}
	v, st := driver.DeviceAttribute(d.handle, int(a))
	return v, failure(st, "Attribute", d.ordinal)
}

// HostNUMANode returns the NUMA node of the host that is closest to the device, or -1 if the system has no NUMA nodes.
func (d Device) HostNUMANode() (int, error) { return d.Attribute(AttrHostNUMAID) }

// ComputeCapability returns the version of the device's architecture, for example 9 and 0 for Hopper.
func (d Device) ComputeCapability() (major, minor int, err error) {
	if major, err = d.Attribute(AttrComputeCapabilityMajor); err != nil {
		return 0, 0, err
	}
	minor, err = d.Attribute(AttrComputeCapabilityMinor)
	return major, minor, err
}
