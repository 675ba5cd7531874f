package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

func TestDevicesKnowThemselves(t *testing.T) {
	device(t)
	devices, err := cuda.Devices()
	require.NoError(t, err)
	n, err := cuda.DeviceCount()
	require.NoError(t, err)
	require.Len(t, devices, n)
	for i, d := range devices {
		assert.Equal(t, i, d.Ordinal())
		name, err := d.Name()
		require.NoError(t, err)
		assert.NotEmpty(t, name)
		total, err := d.TotalMem()
		require.NoError(t, err)
		assert.Positive(t, total)
		bus, err := d.PCIBusID()
		require.NoError(t, err)
		assert.NotEmpty(t, bus)
		major, _, err := d.ComputeCapability()
		require.NoError(t, err)
		assert.Positive(t, major)
		uuid, err := d.UUID()
		require.NoError(t, err)
		same, err := cuda.DeviceByUUID(uuid)
		require.NoError(t, err)
		assert.Equal(t, d, same, "devices are comparable")
		t.Log(d, name, uuid, bus, total>>20, "MiB")
	}
}

func TestADeviceThatIsNotThereIsErrInvalidDevice(t *testing.T) {
	device(t)
	_, err := cuda.DeviceAt(1000)
	require.ErrorIs(t, err, cuda.ErrInvalidDevice)
	_, err = cuda.DeviceAt(-1)
	require.ErrorIs(t, err, cuda.ErrInvalidDevice)
	_, err = cuda.DeviceByUUID(cuda.UUID{1, 2, 3})
	require.ErrorIs(t, err, cuda.ErrInvalidDevice)
}

func TestAnUnknownAttributeIsErrInvalidValue(t *testing.T) {
	_, err := device(t).Attribute(1 << 20)
	require.ErrorIs(t, err, cuda.ErrInvalidValue)
}

func TestProbesAnswer(t *testing.T) {
	d := device(t)
	for name, probe := range map[string]func() (bool, error){
		"mem pools": d.SupportsMemPools, "fd pools": d.SupportsPOSIXFDPools, "VMM": d.SupportsVMM,
		"legacy IPC": d.SupportsLegacyIPC, "IPC events": d.SupportsIPCEvents,
		"host NUMA pools": d.SupportsHostNUMAPools, "stream memory operations": d.SupportsStreamMemOps,
	} {
		ok, err := probe()
		require.NoError(t, err, name)
		t.Log(name, ok)
	}
	ok, readOnly, err := d.SupportsHostRegister()
	require.NoError(t, err)
	t.Log("host registration", ok, "read-only", readOnly)
	node, err := d.HostNUMANode()
	require.NoError(t, err)
	assert.GreaterOrEqual(t, node, -1)
}

func TestADeviceIsNotItsOwnPeer(t *testing.T) {
	d := device(t)
	can, err := d.CanAccessPeer(d)
	require.NoError(t, err)
	assert.False(t, can)
}
