package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/poolbridge/poolbridge/cuda"
)

func TestMemPoolSpecsAreValidated(t *testing.T) {
	for _, ok := range []cuda.MemPoolSpec{
		{},
		{MaxBytes: 1 << 30, ReleaseThreshold: ^uint64(0), Exportable: true},
		{Location: cuda.DeviceLocation(cuda.Device{})},
		{Location: cuda.HostNUMALocation(0)},
	} {
		assert.NoError(t, ok.Validate())
	}
	for _, bad := range []cuda.Location{{Kind: 2}, {Kind: cuda.LocationHostNUMA, ID: -1}, {ID: 1}} {
		assert.ErrorIs(t, cuda.MemPoolSpec{Location: bad}.Validate(), cuda.ErrInvalidValue)
	}
}

func TestAnInterprocessEventCannotMeasureTime(t *testing.T) {
	assert.NoError(t, cuda.EventSpec{Interprocess: true}.Validate())
	assert.NoError(t, cuda.EventSpec{Timing: true}.Validate())
	assert.ErrorIs(t, cuda.EventSpec{Interprocess: true, Timing: true}.Validate(), cuda.ErrInvalidValue)
}

func TestLocationsHaveShortNames(t *testing.T) {
	assert.Equal(t, "numa:1", cuda.HostNUMALocation(1).String())
	assert.Equal(t, "cuda:0", cuda.DeviceLocation(cuda.Device{}).String())
	assert.Equal(t, "cuda:0", cuda.Device{}.String())
	assert.Equal(t, "0x10", cuda.DevicePtr(16).String())
}
