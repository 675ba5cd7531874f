package verify

import (
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/cuda"
)

// Machine describes the machine on which the checks ran.
type Machine struct {
	OS     string `json:"os"`
	Kernel string `json:"kernel"`
	Arch   string `json:"arch"`
	CPUs   int    `json:"cpus"`
	// CUDA is the version that the driver supports, for example 13000 for 13.0. Without a driver, CUDA is 0 and Reason says why.
	CUDA      int               `json:"cuda"`
	Reason    string            `json:"reason,omitempty"`
	Simulated bool              `json:"simulated,omitempty"`
	Devices   []GPU             `json:"devices"`
	Python    string            `json:"python"`
	Packages  map[string]string `json:"packages"`
	// Native says whether the Python package has its native module.
	Native bool `json:"native"`
}

// NativeModule returns a text that says whether the Python package has its native module.
func (m Machine) NativeModule() string {
	if m.Native {
		return "native module"
	}
	return "no native module"
}

// GPU describes one of the machine's GPUs.
type GPU struct {
	Ordinal     int    `json:"ordinal"`
	Name        string `json:"name"`
	UUID        string `json:"uuid"`
	MemoryBytes uint64 `json:"memory_bytes"`
}

// Describe returns a description of this machine.
func Describe() Machine {
	m := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Devices: []GPU{}}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if err := cuda.Init(); err != nil {
		m.Reason = err.Error()
		return m
	}
	m.CUDA, _ = cuda.DriverVersion()
	devices, err := cuda.Devices()
	if err != nil {
		m.Reason = err.Error()
	}
	for _, d := range devices {
		g := GPU{Ordinal: d.Ordinal()}
		g.Name, _ = d.Name()
		g.MemoryBytes, _ = d.TotalMem()
		if uuid, err := d.UUID(); err == nil {
			g.UUID = uuid.String()
		}
		m.Simulated = m.Simulated || strings.Contains(strings.ToLower(g.Name), "simulated")
		m.Devices = append(m.Devices, g)
	}
	return m
}
