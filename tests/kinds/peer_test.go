package kinds

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// second is a GPU besides the first; the test is skipped where there is none.
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

func TestAClientOnAnotherGPUReachesTheMemory(t *testing.T) {
	other := second(t)
	first, err := cuda.DeviceAt(0)
	require.NoError(t, err)
	if ok, err := other.CanAccessPeer(first); err != nil || !ok {
		t.Skipf("GPU 1 does not reach GPU 0 (%v)", err)
	}
	uuid, err := other.UUID()
	require.NoError(t, err)
	for _, kind := range gpuKinds {
		t.Run(string(kind), func(t *testing.T) {
			s, data := published(t, kind)
			c, err := bridge.Dialer{Device: uuid.String()}.Dial(t.Context(), s.Socket)
			require.NoError(t, err)
			l, err := c.Get(t.Context(), "frame", bridge.LeaseOptions{})
			require.NoError(t, err)
			ptr, err := l.Pointer()
			require.NoError(t, err)
			ctx, err := other.Retain()
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
			require.NoError(t, ctx.Close())
			require.NoError(t, l.Release(false))
			require.NoError(t, c.Close())
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
