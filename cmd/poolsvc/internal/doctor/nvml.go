package doctor

import (
	"fmt"

	"github.com/poolbridge/poolbridge/cuda/nvml"
)

// nvml examines what NVIDIA's management library reports: GPUs that this process does not see, and the configuration of GPUs.
func (c *chart) nvml() {
	library, err := nvml.Open()
	if err != nil {
		c.warn("nvml", "only reports miss it; it comes with the driver", "%v", err)
		return
	}
	defer func() {
		if err := library.Close(); err != nil {
			c.warn("nvml", "only reports miss it", "%v", err)
		}
	}()
	version, err := library.DriverVersion()
	if err != nil {
		c.warn("nvml", "only reports miss it", "the driver's version cannot be read: %v", err)
		return
	}
	devices, err := library.Devices()
	if err != nil {
		c.warn("nvml", "only reports miss it", "driver %s, but its devices cannot be listed: %v", version, err)
		return
	}
	c.ok("nvml", "driver %s, %d GPUs in the machine", version, len(devices))
	for i, d := range devices {
		c.managed(i, d)
	}
}

// managed examines one GPU of the machine, even if CUDA does not see it.
func (c *chart) managed(i int, d nvml.Device) {
	topic := fmt.Sprintf("nvml gpu %d", i)
	uuid, err := d.UUID()
	if err != nil {
		c.warn(topic, "", "its UUID cannot be read: %v", err)
		return
	}
	mode, err := d.ComputeMode()
	switch {
	case err != nil:
		c.warn(topic, "", "%s: its compute mode cannot be read: %v", uuid, err)
	case mode == nvml.ComputeExclusiveProcess:
		c.missing(topic, "start MPS, or have an administrator set it with nvidia-smi -c DEFAULT", "%s: compute mode %s lets only one process use it", uuid, mode)
	case mode != nvml.ComputeDefault:
		c.missing(topic, "have an administrator set it with nvidia-smi -c DEFAULT", "%s: compute mode %s", uuid, mode)
	default:
		c.ok(topic, "%s: compute mode %s", uuid, mode)
	}
	if split, err := d.MIGEnabled(); err == nil && split {
		c.warn(topic, "name instances by their UUID (MIG-…); memory is shared within one instance, not between two", "%s: split into instances (MIG)", uuid)
	}
}
