package nvml_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda/nvml"
)

// This test runs in every build, also in builds with the tag nonvml or without cgo, and on machines
// without a driver.
func TestOpenWorksOrSaysThatItIsUnavailable(t *testing.T) {
	lib, err := nvml.Open()
	if err != nil {
		require.ErrorIs(t, err, nvml.ErrUnavailable)
		var e *nvml.Error
		require.True(t, errors.As(err, &e))
		assert.NotEmpty(t, e.Detail)
		t.Skip(err)
	}
	defer lib.Close()
	v, err := lib.DriverVersion()
	require.NoError(t, err)
	assert.NotEmpty(t, v)
	devices, err := lib.Devices()
	require.NoError(t, err)
	for _, d := range devices {
		uuid, err := d.UUID()
		require.NoError(t, err)
		assert.NotZero(t, uuid)
		name, err := d.Name()
		require.NoError(t, err)
		m, err := d.Memory()
		require.NoError(t, err)
		assert.LessOrEqual(t, m.Used+m.Free, m.Total)
		mode, err := d.ComputeMode()
		require.NoError(t, err)
		mig, err := d.MIGEnabled()
		require.NoError(t, err)
		processes, err := d.Processes()
		require.NoError(t, err)
		t.Logf("%s %s: %d of %d MiB used, compute mode %s, MIG %t, %d processes",
			name, uuid, m.Used>>20, m.Total>>20, mode, mig, len(processes))
	}
	require.NoError(t, lib.Close())
	require.NoError(t, lib.Close(), "Close is idempotent")
}
