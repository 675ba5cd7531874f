package doctor

import (
	"errors"
	"fmt"
	"strings"

	"github.com/poolbridge/poolbridge/cuda"
)

// driver examines the CUDA driver, and returns the devices that the driver reports.
func (c *chart) driver() []cuda.Device {
	err := cuda.Init()
	switch {
	case errors.Is(err, cuda.ErrNoDriver):
		c.missing("driver", "install the NVIDIA driver, or in a container pass the GPU through; kind host works without", "%v", err)
		return nil
	case err != nil:
		c.missing("driver", "check nvidia-smi and the kernel log; kind host works without", "%v", err)
		return nil
	}
	version, err := cuda.DriverVersion()
	if err != nil {
		c.missing("driver", "check nvidia-smi", "its version cannot be read: %v", err)
		return nil
	}
	c.ok("driver", "supports CUDA %d.%d", version/1000, version%1000/10)
	devices, err := cuda.Devices()
	if err != nil || len(devices) == 0 {
		c.missing("devices", "check CUDA_VISIBLE_DEVICES and nvidia-smi", "the driver shows no device (%v)", err)
	}
	return devices
}

// feature is a feature that a device may have. needs says which kind of memory or which function of poolbridge needs
// the feature.
type feature struct {
	name  string
	needs string
	probe func(cuda.Device) (bool, error)
}

var features = []feature{
	{"memory pools", "kind device", cuda.Device.SupportsMemPools},
	{"POSIX-fd pool handles", "kind device", cuda.Device.SupportsPOSIXFDPools},
	{"virtual memory management", "kind vmm", cuda.Device.SupportsVMM},
	{"legacy IPC handles", "kind legacy", cuda.Device.SupportsLegacyIPC},
	{"host NUMA pools", "kind pinned", cuda.Device.SupportsHostNUMAPools},
	{"stream memory operations", "ordering on the GPU", cuda.Device.SupportsStreamMemOps},
	{"interprocess events", "events between processes", cuda.Device.SupportsIPCEvents},
}

// device examines one GPU.
func (c *chart) device(d cuda.Device) {
	topic := fmt.Sprintf("gpu %d", d.Ordinal())
	name, err := d.Name()
	if err != nil {
		c.missing(topic, "check nvidia-smi", "its name cannot be read: %v", err)
		return
	}
	uuid, _ := d.UUID()
	total, _ := d.TotalMem()
	if strings.Contains(strings.ToLower(name), "simulated") {
		c.warn(topic, "take the simulated libcuda.so.1 out of LD_LIBRARY_PATH to use real hardware",
			"%s, %s, %d MiB: SIMULATED, this is no real GPU", name, uuid, total>>20)
	} else {
		c.ok(topic, "%s, %s, %d MiB", name, uuid, total>>20)
	}
	c.place(topic, d)
	var has, lacks []string
	for _, f := range features {
		if ok, err := f.probe(d); err == nil && ok {
			has = append(has, f.name)
		} else {
			lacks = append(lacks, fmt.Sprintf("%s (for %s)", f.name, f.needs))
		}
	}
	if len(has) > 0 {
		c.ok(topic+" features", "%s", strings.Join(has, ", "))
	}
	if len(lacks) > 0 {
		c.missing(topic+" features", "use a kind of memory that does not need them", "%s", strings.Join(lacks, ", "))
	}
}

// place examines where a GPU is in the machine, and its architecture.
func (c *chart) place(topic string, d cuda.Device) {
	bus, err := d.PCIBusID()
	if err != nil {
		c.warn(topic, "check nvidia-smi", "its place cannot be read: %v", err)
		return
	}
	major, minor, _ := d.ComputeCapability()
	node := "no NUMA node"
	if n, err := d.HostNUMANode(); err == nil && n >= 0 {
		node = fmt.Sprintf("NUMA node %d", n)
	}
	c.ok(topic, "PCI %s, %s, compute capability %d.%d", bus, node, major, minor)
	if on, err := d.Attribute(cuda.AttrMPSEnabled); err == nil && on != 0 {
		c.ok(topic, "MPS is on")
	}
}

// peers examines which GPUs can access the memory of each other.
func (c *chart) peers(devices []cuda.Device) {
	for _, a := range devices {
		var reached, unreached []string
		for _, b := range devices {
			if a == b {
				continue
			}
			if ok, err := a.CanAccessPeer(b); err == nil && ok {
				reached = append(reached, fmt.Sprint(b.Ordinal()))
			} else {
				unreached = append(unreached, fmt.Sprint(b.Ordinal()))
			}
		}
		topic := fmt.Sprintf("gpu %d peers", a.Ordinal())
		if len(reached) > 0 {
			c.ok(topic, "reaches the memory of %s", strings.Join(reached, ", "))
		}
		if len(unreached) > 0 {
			c.warn(topic, "let consumers use the pool's own GPU", "does not reach the memory of %s", strings.Join(unreached, ", "))
		}
	}
}
