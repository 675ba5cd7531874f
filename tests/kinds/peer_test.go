package kinds

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/cuda/pattern"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// second returns the second GPU. If there is only one GPU, second skips the test.
func second(t *testing.T) cuda.Device {
	t.Helper()
	if err := cuda.Init(); err != nil {
		t.Skip(err)
	}
	n, err := cuda.DeviceCount()
	require.NoError(t, err)
	if n < 2 {
		t.Skip("there is only one GPU")
	}
	d, err := cuda.DeviceAt(1)
	require.NoError(t, err)
	return d
}

// reached returns the UUID and the context of the second GPU, and the pattern kernels in this context. If the second
// GPU cannot access the memory of the first GPU, reached skips the test.
func reached(t *testing.T) (uuid string, ctx *cuda.Context, kernels *pattern.Kernels) {
	t.Helper()
	other := second(t)
	first, err := cuda.DeviceAt(0)
	require.NoError(t, err)
	if ok, err := other.CanAccessPeer(first); err != nil || !ok {
		t.Skipf("GPU 1 does not reach GPU 0 (%v)", err)
	}
	u, err := other.UUID()
	require.NoError(t, err)
	ctx, err = other.Retain()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ctx.Close()) })
	kernels, err = pattern.Load(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, kernels.Close()) })
	return u.String(), ctx, kernels
}

// written is the pattern that the kernels of one GPU write and that the kernels of the other GPU check.
var written = pattern.Masked{Scale: 7, Offset: 3, Mask: 0x5a5a}

const words = mib / 4

// holds checks with the kernels k that the memory contains the pattern written.
func holds(t *testing.T, k *pattern.Kernels, at uintptr) {
	t.Helper()
	r, err := k.Verify(nil, cuda.DevicePtr(at), words, written)
	require.NoError(t, err)
	assert.Zero(t, r.Count, "%v", r)
}

func TestKernelsOfAnotherGPUReadAndWriteTheMemory(t *testing.T) {
	device, ctx, kernels := reached(t)
	for _, kind := range gpuKinds {
		t.Run(string(kind), func(t *testing.T) {
			s, _ := published(t, kind)
			c, err := bridge.Dialer{Device: device}.Dial(t.Context(), s.Socket)
			require.NoError(t, err)
			p, err := c.TryOpenPool(t.Context(), "p")
			require.NoError(t, err)
			l, err := p.TryAllocate(t.Context(), mempool.Bytes(mib))
			require.NoError(t, err)
			ptr, err := l.Pointer(t.Context())
			require.NoError(t, err)
			stream, err := ctx.NewStream()
			require.NoError(t, err)
			require.NoError(t, kernels.Fill(stream, cuda.DevicePtr(ptr), words, written))
			require.NoError(t, stream.Synchronize())
			holds(t, kernels, ptr)
			got, want := make([]byte, mib), make([]byte, mib)
			require.NoError(t, l.CopyTo(t.Context(), got, 0))
			require.NoError(t, pattern.Fill(want, written))
			assert.Equal(t, want, got, "as its client copies it")
			require.NoError(t, stream.Close())
			require.NoError(t, l.Release(false))
			require.NoError(t, c.Close())
		})
	}
}

func TestAClientOnAnotherGPUCopiesTheMemory(t *testing.T) {
	device, ctx, _ := reached(t)
	for _, kind := range gpuKinds {
		if kind == mempool.Pinned {
			continue // the driver refuses copies that treat this memory as memory of a GPU
		}
		t.Run(string(kind), func(t *testing.T) {
			s, data := published(t, kind)
			c, err := bridge.Dialer{Device: device}.Dial(t.Context(), s.Socket)
			require.NoError(t, err)
			l, err := c.TryGet(t.Context(), "frame", bridge.LeaseOptions{})
			require.NoError(t, err)
			ptr, err := l.Pointer(t.Context())
			require.NoError(t, err)
			here, err := ctx.Malloc(mib)
			require.NoError(t, err)
			stream, err := ctx.NewStream()
			require.NoError(t, err)
			require.NoError(t, stream.CopyDtoDAsync(here, cuda.DevicePtr(ptr), uint64(len(data))))
			require.NoError(t, stream.Synchronize())
			got := make([]byte, len(data))
			require.NoError(t, ctx.CopyDtoH(got, here))
			assert.Equal(t, data, got)
			require.NoError(t, stream.Close())
			require.NoError(t, ctx.MFree(here))
			require.NoError(t, l.Release(false))
			require.NoError(t, c.Close())
		})
	}
}

func TestClientsOnTwoGPUsOfOneProcessUseTheMemoryAtOnce(t *testing.T) {
	device, _, there := reached(t)
	first, err := cuda.DeviceAt(0)
	require.NoError(t, err)
	ctx, err := first.Retain()
	require.NoError(t, err)
	defer ctx.Close()
	here, err := pattern.Load(ctx)
	require.NoError(t, err)
	defer here.Close()
	for _, kind := range gpuKinds {
		t.Run(string(kind), func(t *testing.T) {
			s, _ := published(t, kind)
			own, err := bridge.Dial(t.Context(), s.Socket)
			require.NoError(t, err)
			other, err := bridge.Dialer{Device: device}.Dial(t.Context(), s.Socket)
			require.NoError(t, err)
			p, err := own.TryOpenPool(t.Context(), "p")
			require.NoError(t, err)
			l, err := p.TryAllocate(t.Context(), mempool.Bytes(mib))
			require.NoError(t, err)
			mine, err := l.Pointer(t.Context())
			require.NoError(t, err)
			stream, err := ctx.NewStream()
			require.NoError(t, err)
			require.NoError(t, here.Fill(stream, cuda.DevicePtr(mine), words, written))
			require.NoError(t, stream.Synchronize())
			require.NoError(t, stream.Close())
			require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: "both", Keep: true}))
			got, err := other.TryGet(t.Context(), "both", bridge.LeaseOptions{})
			require.NoError(t, err)
			theirs, err := got.Pointer(t.Context())
			require.NoError(t, err)
			holds(t, there, theirs)
			again, err := own.TryGet(t.Context(), "both", bridge.LeaseOptions{})
			require.NoError(t, err)
			require.NoError(t, got.Release(false))
			require.NoError(t, other.Close())
			ptr, err := again.Pointer(t.Context())
			require.NoError(t, err)
			holds(t, here, ptr) // the other client has unmapped the memory, and this client can still use it
			require.NoError(t, again.Release(false))
			require.NoError(t, own.Close())
		})
	}
}

func TestPoolsAreMadeOnTheGPUThatIsNamed(t *testing.T) {
	other := second(t)
	uuid, err := other.UUID()
	require.NoError(t, err)
	for _, kind := range gpuKinds {
		for _, device := range []string{"1", uuid.String()} {
			s := rig.Serve(t, "--pool", "name=p,max=64MiB,kind="+string(kind)+",device="+device)
			pools := s.Stats(t).Pools
			require.Len(t, pools, 1)
			assert.Equal(t, mempool.DeviceInfo{Ordinal: 1, UUID: uuid.String()}, pools[0].Pool.Device, "%s on %s", kind, device)
		}
	}
}
