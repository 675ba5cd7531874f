package driverfacts_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		if err := work(); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	kib = 1 << 10
	mib = 1 << 20
)

// device returns the GPU with the given ordinal. If there is no such GPU, device skips the test.
func device(t testing.TB, ordinal int) cuda.Device {
	t.Helper()
	if err := cuda.Init(); err != nil {
		t.Skip(err)
	}
	n, err := cuda.DeviceCount()
	require.NoError(t, err)
	if n <= ordinal {
		t.Skipf("needs %d devices, there are %d", ordinal+1, n)
	}
	d, err := cuda.DeviceAt(ordinal)
	require.NoError(t, err)
	return d
}

// needs skips the test if probe returns false.
func needs(t testing.TB, probe func() (bool, error), what string) {
	t.Helper()
	ok, err := probe()
	require.NoError(t, err)
	if !ok {
		t.Skip("the device does not support ", what)
	}
}

func needPools(t testing.TB) {
	t.Helper()
	needs(t, device(t, 0).SupportsPOSIXFDPools, "pools with descriptors")
}
func needVMM(t *testing.T)    { t.Helper(); needs(t, device(t, 0).SupportsVMM, "VMM with descriptors") }
func needLegacy(t testing.TB) { t.Helper(); needs(t, device(t, 0).SupportsLegacyIPC, "legacy IPC") }
func needEvents(t *testing.T) { t.Helper(); needs(t, device(t, 0).SupportsIPCEvents, "IPC events") }
func needWords(t *testing.T) {
	t.Helper()
	needs(t, device(t, 0).SupportsStreamMemOps, "stream memory operations")
}
