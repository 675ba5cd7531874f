package kinds

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/cuda/pattern"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestABlockOfVMMHasTwoMappingsOfOneImport(t *testing.T) {
	_, i := start(t, mempool.VMM)
	b, err := i.pool.Block(i.id, i.size, &i.export)
	require.NoError(t, err)
	again, err := i.pool.Block(i.id, i.size, nil)
	require.NoError(t, err)
	assert.Same(t, b, again, "one import in a process")
	write, err := b.Memory(true)
	require.NoError(t, err)
	read, err := b.Memory(false)
	require.NoError(t, err)
	same, err := again.Memory(false)
	require.NoError(t, err)
	assert.NotEqual(t, write.Pointer(), read.Pointer())
	assert.Equal(t, read.Pointer(), same.Pointer(), "mapped once to read")

	require.NoError(t, write.CopyFrom(100, []byte("seen")))
	text := make([]byte, 4)
	require.NoError(t, read.CopyTo(text, 100))
	assert.Equal(t, "seen", string(text))
	require.NoError(t, b.Close())
	require.NoError(t, read.CopyTo(text, 100), "somebody uses it still")
	require.NoError(t, again.Close())
}

func TestWritingAReadOnlyMappingFailsBeforeTheDriver(t *testing.T) {
	_, i := start(t, mempool.VMM)
	b, err := i.pool.Block(i.id, i.size, &i.export)
	require.NoError(t, err)
	m, err := b.Memory(false)
	require.NoError(t, err)
	for what, err := range map[string]error{"CopyFrom": m.CopyFrom(0, []byte{1}), "Fill": m.Fill(0, 1, 1)} {
		assert.ErrorIs(t, err, mempool.ErrInvalid, what)
		assert.NotErrorIs(t, err, cuda.ErrInvalidValue, what)
	}
	d, err := mempool.FindDevice(i.info.Device.UUID)
	require.NoError(t, err)
	ctx, err := d.Retain()
	require.NoError(t, err)
	assert.ErrorIs(t, ctx.CopyHtoD(cuda.DevicePtr(m.Pointer()), []byte{1}), cuda.ErrInvalidValue, "past the library the driver refuses")
	require.NoError(t, ctx.Close())
	require.NoError(t, b.Close())
}

func TestPinnedMemoryIsOneAddressForCPUAndGPU(t *testing.T) {
	_, i := start(t, mempool.Pinned)
	b, err := i.pool.Block(i.id, i.size, &i.export)
	require.NoError(t, err)
	m, err := b.Memory(true)
	require.NoError(t, err)
	mem := m.Bytes()
	require.Len(t, mem, int(i.size))
	d, err := mempool.FindDevice(i.info.Device.UUID)
	require.NoError(t, err)
	ctx, err := d.Retain()
	require.NoError(t, err)
	s, err := ctx.NewStream()
	require.NoError(t, err)
	// The test uses kernels, because the driver refuses copies that treat this address as an address of a device.
	kernels, err := pattern.Load(ctx)
	require.NoError(t, err)
	n, ptr := i.size/4, cuda.DevicePtr(m.Pointer())
	byCPU, byGPU := pattern.Frame{Seq: 1}, pattern.Frame{Seq: 2}
	require.NoError(t, pattern.Fill(mem, byCPU))
	seen, err := kernels.Verify(s, ptr, n, byCPU)
	require.NoError(t, err)
	assert.NoError(t, seen.Err(), "the GPU reads what the CPU wrote")
	require.NoError(t, kernels.Fill(s, ptr, n, byGPU))
	require.NoError(t, s.Synchronize())
	seen, err = pattern.Verify(mem, byGPU)
	require.NoError(t, err)
	assert.NoError(t, seen.Err(), "the CPU reads what the GPU wrote")
	require.NoError(t, kernels.Close())
	require.NoError(t, s.Close())
	require.NoError(t, ctx.Close())
	require.NoError(t, b.Close())
}

func TestAnOpenedHandleThatIsForgottenClosesItself(t *testing.T) {
	_, i := start(t, mempool.Legacy)
	h, err := mempool.ParseLegacyHandle(i.export.Data)
	require.NoError(t, err)
	d, err := mempool.FindDevice(i.info.Device.UUID)
	require.NoError(t, err)
	ctx, err := d.Retain()
	require.NoError(t, err)
	defer ctx.Close()
	o, err := h.Open(ctx, 0)
	require.NoError(t, err)
	ptr := o.Ptr()
	runtime.KeepAlive(o)
	o = nil
	require.Eventually(t, func() bool {
		runtime.GC()
		_, _, err := ctx.AddressRange(ptr)
		return err != nil
	}, time.Minute, time.Millisecond)
}

func TestVMMIsMappedAfterAPoolOfPinnedMemoryWasClosed(t *testing.T) {
	// The driver then reserves the addresses of the closed pool again, and calls memory there mapped.
	t.Run("pinned", func(t *testing.T) {
		_, i := start(t, mempool.Pinned)
		i.works(t)
	})
	_, i := start(t, mempool.VMM)
	i.works(t)
}
