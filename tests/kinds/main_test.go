package kinds

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// onceMore is an environment variable. If it is set, this process was restarted so that it finds the simulated driver.
const onceMore = "POOLBRIDGE_KINDS_ONCE_MORE"

func TestMain(m *testing.M) {
	if cuda.Init() != nil && os.Getenv(onceMore) == "" {
		simulate()
	}
	cuda.TraceObjects()
	if socket := os.Getenv(readerOf); socket != "" {
		if err := read(socket); err != nil {
			fmt.Fprintln(os.Stderr, "reader:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	status := m.Run()
	if left := cuda.OpenObjects(); status == 0 && len(left) != 0 {
		fmt.Fprintln(os.Stderr, "not closed:", left)
		status = 1
	}
	os.Exit(status)
}

// simulate restarts this program with the simulated driver, if the simulated driver is built. A restart is needed,
// because a process cannot change the paths of its libraries after its start.
func simulate() {
	folder := filepath.Join(rig.Root(), "build", "simcuda")
	if _, err := os.Stat(filepath.Join(folder, "libcuda.so.1")); err != nil {
		return
	}
	self, err := os.Executable()
	if err != nil {
		return
	}
	err = syscall.Exec(self, os.Args, append(os.Environ(), onceMore+"=1", "LD_LIBRARY_PATH="+folder))
	fmt.Fprintln(os.Stderr, "on the simulated driver:", err)
}

// simulated skips a test if there is no driver, or if the driver is a real driver.
func simulated(t *testing.T) {
	t.Helper()
	if err := cuda.Init(); err != nil {
		t.Skip(err)
	}
	d, err := cuda.DeviceAt(0)
	require.NoError(t, err)
	if name, _ := d.Name(); !strings.Contains(name, "simulated") {
		t.Skip("this is for the simulated driver")
	}
}
