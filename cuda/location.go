package cuda

import (
	"fmt"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// DevicePtr is a CUdeviceptr: an address that the GPU uses. If the memory belongs to a pool on the host, the CPU uses the same address.
type DevicePtr uint64

// String returns the address in hex.
func (p DevicePtr) String() string { return fmt.Sprintf("0x%x", uint64(p)) }

// LocationKind is a CUmemLocationType.
type LocationKind int

// These are the places where memory can be.
const (
	LocationDevice   LocationKind = 1 // a GPU, by ordinal
	LocationHostNUMA LocationKind = 3 // a NUMA node of the host
)

// Location says where memory is: on a GPU or on a NUMA node. For the methods of a [Context], the zero Location means the device of the context.
type Location struct {
	Kind LocationKind
	ID   int // the ordinal of the GPU, or the number of the NUMA node
}

// DeviceLocation returns the Location of the memory of a GPU.
func DeviceLocation(d Device) Location { return Location{LocationDevice, d.ordinal} }

// HostNUMALocation returns the Location of the memory of a NUMA node of the host.
func HostNUMALocation(node int) Location { return Location{LocationHostNUMA, node} }

// String returns a text like "cuda:0" or "numa:0".
func (l Location) String() string {
	switch l.Kind {
	case LocationDevice:
		return fmt.Sprintf("cuda:%d", l.ID)
	case LocationHostNUMA:
		return fmt.Sprintf("numa:%d", l.ID)
	case 0:
		return "cuda"
	}
	return fmt.Sprintf("location(%d):%d", l.Kind, l.ID)
}

// Validate returns an error if no memory pool can be at this location.
func (l Location) Validate() error {
	switch {
	case l == Location{}:
		return nil
	case l.Kind != LocationDevice && l.Kind != LocationHostNUMA:
		return fmt.Errorf("cuda: location: kind %d is neither a device nor a NUMA node: %w", l.Kind, ErrInvalidValue)
	case l.ID < 0:
		return fmt.Errorf("cuda: location: %s does not exist: %w", l, ErrInvalidValue)
	}
	return nil
}

// in converts the location to the type that the driver uses. It converts the zero Location to the device of the context c.
func (l Location) in(c *Context) driver.Location {
	if l.Kind == 0 {
		l = DeviceLocation(c.device)
	}
	return driver.Location{Type: int32(l.Kind), ID: int32(l.ID)}
}

// AccessFlags are CUmemAccess_flags.
type AccessFlags int

// These flags say what a device may do with memory.
const (
	AccessNone      AccessFlags = 0
	AccessReadOnly  AccessFlags = 1
	AccessReadWrite AccessFlags = 3
)
