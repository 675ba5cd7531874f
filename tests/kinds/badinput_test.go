package kinds

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// gpuKinds are the kinds of memory of a GPU.
var gpuKinds = []mempool.Kind{mempool.Device, mempool.VMM, mempool.Legacy, mempool.Pinned}

// each runs a test for each kind in kinds. After each test, it checks that the pool and CUDA still work.
func each(t *testing.T, kinds []mempool.Kind, f func(*testing.T, *imported)) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			_, i := start(t, kind)
			f(t, i)
			i.works(t)
		})
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func TestBytesThatAreNoExportAreRefused(t *testing.T) {
	each(t, []mempool.Kind{mempool.Device, mempool.Legacy, mempool.Pinned}, func(t *testing.T, i *imported) {
		good := i.export.Data
		for what, data := range map[string][]byte{
			"none":     nil,
			"one less": good[:len(good)-1],
			"one more": append(bytes.Clone(good), 0),
			"63":       good[:63],
			"65":       append(bytes.Clone(good[:64]), 0),
			"random":   random(len(good)),
			"all zero": make([]byte, len(good)),
		} {
			err := i.take(i.id, i.size, mempool.Export{Data: data})
			if i.info.Kind == mempool.Legacy && len(data) == len(good) && errors.Is(err, mempool.ErrOwnerDead) {
				continue // some drivers report this error for bytes that could be a handle
			}
			assert.ErrorIs(t, err, mempool.ErrInvalid, what)
		}
	})
}

func TestAnotherPoolsBlockIsRefused(t *testing.T) {
	each(t, []mempool.Kind{mempool.Device, mempool.Pinned}, func(t *testing.T, i *imported) {
		q, _ := i.raw.pool("q")
		other := i.raw.allocate(q.ID, mib)
		assert.ErrorIs(t, i.take(other.id, other.size, other.export), mempool.ErrInvalid)
	})
}

func TestMoreBytesThanABlockHasAreRefused(t *testing.T) {
	each(t, gpuKinds, func(t *testing.T, i *imported) {
		for _, size := range []uint64{64 * mib, i.size + 2*mib, 1 << 40} {
			assert.ErrorIs(t, i.take(i.id, size, i.export), mempool.ErrInvalid, "%d bytes", size)
		}
	})
}

func TestAnOffsetOutsideOfTheBlockIsRefused(t *testing.T) {
	each(t, []mempool.Kind{mempool.Legacy}, func(t *testing.T, i *imported) {
		for _, off := range []uint64{1, i.size, 1 << 40, ^uint64(0)} {
			data := binary.LittleEndian.AppendUint64(bytes.Clone(i.export.Data[:64]), off)
			assert.ErrorIs(t, i.take(i.id, i.size, mempool.Export{Data: data}), mempool.ErrInvalid, "offset %d", off)
		}
	})
}

func TestADescriptorOfSomethingElseIsRefused(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	require.NoError(t, err)
	defer null.Close()
	file, err := os.CreateTemp(t.TempDir(), "file")
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, file.Truncate(4*mib))
	each(t, gpuKinds, func(t *testing.T, i *imported) {
		for _, f := range []*os.File{null, file} {
			other := i.info
			other.ID += 1000
			_, err := mempool.ImportPool(i.raw.epoch, other, mempool.Export{Files: []*os.File{f}}, "")
			assert.ErrorIs(t, err, mempool.ErrInvalid, "as the pool's")
			assert.ErrorIs(t, i.take(i.id, i.size, mempool.Export{Files: []*os.File{f}}), mempool.ErrInvalid, "as the block's")
			assert.ErrorIs(t, i.take(i.id, i.size, mempool.Export{Data: i.export.Data, Files: []*os.File{f, f}}), mempool.ErrInvalid, "two")
		}
	})
}

func TestAGPUThatIsNotSeenIsNamed(t *testing.T) {
	each(t, gpuKinds, func(t *testing.T, i *imported) {
		const elsewhere = "GPU-01234567-89ab-cdef-0123-456789abcdef"
		_, x := i.raw.pool("p")
		other := i.info
		other.ID += 1000
		other.Device.UUID = elsewhere
		_, err := mempool.ImportPool(i.raw.epoch, other, x, "")
		assert.ErrorIs(t, err, mempool.ErrUnavailable)
		assert.ErrorContains(t, err, elsewhere)
		other.Device.UUID = ""
		_, err = mempool.ImportPool(i.raw.epoch, other, x, "")
		assert.ErrorIs(t, err, mempool.ErrInvalid)
		_, err = mempool.ImportPool(i.raw.epoch, i.info, mempool.Export{}, elsewhere)
		assert.ErrorIs(t, err, mempool.ErrUnavailable)
		_, err = mempool.ImportPool(i.raw.epoch, i.info, mempool.Export{}, "the big one")
		assert.ErrorIs(t, err, mempool.ErrInvalid)
		own, err := mempool.ImportPool(i.raw.epoch, i.info, mempool.Export{}, i.info.Device.UUID)
		require.NoError(t, err)
		assert.Same(t, i.pool, own)
		require.NoError(t, own.Close())
	})
}

func TestTheHandleOfAKilledServiceIsOfADeadOwner(t *testing.T) {
	s, i := start(t, mempool.Legacy)
	h, err := mempool.ParseLegacyHandle(i.export.Data)
	require.NoError(t, err)
	d, err := mempool.FindDevice(i.info.Device.UUID)
	require.NoError(t, err)
	ctx, err := d.Retain()
	require.NoError(t, err)
	defer ctx.Close()
	opened, err := h.Open(ctx, 0)
	require.NoError(t, err)
	assert.Equal(t, i.size, opened.Size(), "all that follows the offset")
	require.NoError(t, opened.Close())
	require.NoError(t, opened.Close(), "again")

	s.Kill(t)
	_, err = h.Open(ctx, 0)
	assert.ErrorIs(t, err, mempool.ErrOwnerDead)
	assert.ErrorIs(t, err, mempool.ErrUnavailable)
	assert.ErrorIs(t, i.take(i.id, i.size, i.export), mempool.ErrOwnerDead)
	ptr, err := ctx.Malloc(mib)
	require.NoError(t, err, "the process can go on using CUDA")
	require.NoError(t, ctx.MFree(ptr))
}

// beside returns the legacy handle of a block, the primary context of the GPU, and a second context.
func beside(t *testing.T, i *imported) (h mempool.LegacyHandle, primary, second *cuda.Context) {
	t.Helper()
	h, err := mempool.ParseLegacyHandle(i.export.Data)
	require.NoError(t, err)
	d, err := mempool.FindDevice(i.info.Device.UUID)
	require.NoError(t, err)
	primary, err = d.Retain()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, primary.Close()) })
	second, err = d.NewContext()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, second.Close()) })
	return h, primary, second
}

func TestALegacyHandleOpensInASecondContextWhereItIsNotOpenInThePrimaryOne(t *testing.T) {
	_, i := start(t, mempool.Legacy)
	i.works(t)
	h, _, second := beside(t, i)
	opened, err := h.Open(second, 0)
	require.NoError(t, err)
	assert.Equal(t, i.size, opened.Size())
	text := make([]byte, 4)
	require.NoError(t, second.CopyDtoH(text, opened.Ptr()+cuda.DevicePtr(i.size-4)))
	assert.Equal(t, "fine", string(text))
	require.NoError(t, opened.Close())
	i.works(t)
}

func TestALegacyHandleThatIsOpenInThePrimaryContextIsRefusedClearlyInASecondOne(t *testing.T) {
	_, i := start(t, mempool.Legacy)
	h, primary, second := beside(t, i)
	opened, err := h.Open(primary, 0)
	require.NoError(t, err)
	_, err = h.Open(second, 0)
	assert.ErrorIs(t, err, mempool.ErrSecondContext)
	assert.ErrorIs(t, err, mempool.ErrUnavailable)
	assert.ErrorIs(t, err, cuda.ErrInvalidHandle, "the driver's own word stays in the chain")
	require.NoError(t, opened.Close())
	again, err := h.Open(second, 0)
	require.NoError(t, err)
	require.NoError(t, again.Close())
	i.works(t)
}

func TestTheHandleOfAKilledServiceIsOfADeadOwnerInASecondContextToo(t *testing.T) {
	s, i := start(t, mempool.Legacy)
	h, _, second := beside(t, i)
	s.Kill(t)
	_, err := h.Open(second, 0)
	assert.ErrorIs(t, err, mempool.ErrOwnerDead)
	assert.NotErrorIs(t, err, mempool.ErrSecondContext)
}
