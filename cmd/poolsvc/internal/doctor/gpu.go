package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// driver examines the CUDA driver, and returns the devices that the driver reports. If there are none, one finding says why, and what works.
func (c *chart) driver() []cuda.Device {
	list, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	devices, err := []cuda.Device(nil), cuda.Init()
	if err == nil {
		devices, err = cuda.Devices()
	}
	files, _ := filepath.Glob("/dev/nvidia[0-9]*")
	switch {
	case err == nil && len(devices) > 0:
	case set && list == "":
		c.noDevice(false, "unset it, or list GPUs", "CUDA_VISIBLE_DEVICES is empty")
	case len(files) > 0:
		c.noDevice(true, "check nvidia-smi and the kernel log", "there is %s, but %v", files[0], err)
	case errors.Is(err, cuda.ErrNoDriver):
		_, cause, _ := strings.Cut(err.Error(), cuda.ErrNoDriver.Error())
		c.noDevice(false, "install the NVIDIA driver, or in a container pass the GPU through", "no CUDA driver%s", cause)
	default:
		c.noDevice(set, "check CUDA_VISIBLE_DEVICES and nvidia-smi; in a container pass the GPU through", "the driver shows no device (%v)", err)
	}
	if len(devices) == 0 {
		return nil
	}
	if set {
		c.ok("CUDA_VISIBLE_DEVICES", "%s: ordinals count from there; processes agree on UUIDs, not on ordinals", list)
	}
	if version, err := cuda.DriverVersion(); err != nil {
		c.missing("driver", "check nvidia-smi", "its version cannot be read: %v", err)
	} else {
		c.ok("driver", "supports CUDA %d.%d", version/1000, version%1000/10)
	}
	return devices
}

// noDevice says why there is no GPU, and whether kind host works. The GPU counts as missing if a kind of memory is asked for that needs it. If
// no kind is asked for, it counts as missing if it should be there.
func (c *chart) noDevice(expected bool, advice, why string, args ...any) {
	c.noGPU = true
	grade := c.warn
	if len(c.asked.Kinds) > 0 {
		expected = slices.ContainsFunc(c.asked.Kinds, func(k mempool.Kind) bool { return k != mempool.Host })
	}
	if expected {
		grade = c.missing
	}
	grade("gpu", advice, "none, so only kind host can be used: "+why, args...)
	c.kinds(nil)
}

// feature is a feature that a device may have. needs says which kind of memory or which function of poolbridge needs
// the feature.
type feature struct {
	name  string
	needs string
	kind  mempool.Kind // "": every kind
	probe func(cuda.Device) (bool, error)
}

var features = []feature{
	{"memory pools", "kind device", "device", cuda.Device.SupportsMemPools},
	{"POSIX-fd pool handles", "kind device", "device", cuda.Device.SupportsPOSIXFDPools},
	{"virtual memory management", "kind vmm", "vmm", cuda.Device.SupportsVMM},
	{"legacy IPC handles", "kind legacy", "legacy", cuda.Device.SupportsLegacyIPC},
	{"host NUMA pools", "kind pinned", "pinned", cuda.Device.SupportsHostNUMAPools},
	{"stream memory operations", "ordering on the GPU", "", cuda.Device.SupportsStreamMemOps},
	{"interprocess events", "events between processes", "", cuda.Device.SupportsIPCEvents},
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
		switch ok, err := f.probe(d); {
		case err == nil && ok:
			has = append(has, f.name)
		case f.kind == "" || c.asked.asksFor(f.kind):
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
