package integration

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestPartsOfArenasGoFromGoToPythonAndBack(t *testing.T) {
	e := newEarly(t, mempool.Host)
	a, err := e.pool.Arena(t.Context(), 4096)
	require.NoError(t, err)
	tensor := bridge.Tensor{DType: bridge.Uint8, Shape: []uint64{10}}
	channel, err := e.client.CreateChannel(t.Context(), bridge.ChannelSpec{Name: "c", Pool: e.pool.Info().ID, Capacity: 4})
	require.NoError(t, err)
	for i, to := range []string{"nobody", "name", "channel"} {
		part, err := a.Allocate(t.Context(), 600)
		require.NoError(t, err)
		memory, err := part.Bytes(t.Context())
		require.NoError(t, err)
		for at := range memory {
			memory[at] = byte(i)
		}
		lease, err := part.Lease(t.Context(), tensor)
		require.NoError(t, err)
		switch to {
		case "name":
			require.NoError(t, lease.Publish(t.Context(), bridge.Publication{Name: "x"}))
		case "channel":
			_, err = channel.Publish(t.Context(), lease, bridge.FrameOptions{})
			require.NoError(t, err)
		}
	}
	script := e.python.Start(t, `
import sys, numpy as np, poolbridge
with poolbridge.connect(sys.argv[1], timeout=60) as client:
    client.open_pool("p")
    frame = client.open_channel("c").latest(60)
    print(client.get_array("x").tolist(), np.asarray(frame).tolist(), flush=True)
    frame.release()
    arena = client.arena(4096)
    arrays = [arena.full(600, n, "uint8") for n in range(3)]
    client.put(arrays[2][10:20], "y")
    print("put", flush=True)
    sys.stdin.readline()
`, e.Socket)
	assert.Equal(t, "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1] [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]", script.Line(t))
	require.Equal(t, "put", script.Line(t))
	got, err := e.client.TryGet(t.Context(), "y", bridge.LeaseOptions{})
	require.NoError(t, err)
	memory, err := got.Bytes(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []byte{2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, memory)
	assert.EqualValues(t, 2058, got.Grant().Base)
	script.Say(t, "done")
	script.End(t)
}
