package integration

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// promiser is a program that publishes two buffers and a frame. For each line that the test sends, promiser writes the
// content of one of the three.
const promiser = `
import sys, poolbridge
import numpy as np
client = poolbridge.connect(sys.argv[1])
client.open_pool("p")
leases = [client.allocate((1000,), "uint8") for _ in range(3)]
arrays = [np.asarray(lease) for lease in leases]
promises = [lease.promise() for lease in leases]
leases[0].publish("kept")
leases[1].publish("broken")
client.open_channel("c").publish(leases[2])
print("published")
for line in sys.stdin:
    which, value = map(int, line.split())
    arrays[which][:] = value
    promises[which].complete()
    print("kept")
`

func TestGoWaitsForWhatPythonHasPromised(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=1MiB")
	c := dial(t, s)
	ctx := context.Background()
	p, err := c.TryOpenPool(ctx, "p")
	require.NoError(t, err)
	ch, err := c.CreateChannel(ctx, mempool.ChannelSpec{Name: "c", Pool: p.Info().ID, Capacity: 2})
	require.NoError(t, err)
	worker := rig.Python(t).Start(t, promiser, s.Socket)
	require.Equal(t, "published", worker.Line(t))

	got := make([]byte, 1000)
	kept, err := c.TryGet(ctx, "kept", bridge.LeaseOptions{})
	require.NoError(t, err)
	brief, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, kept.WaitOn(brief, mempool.CPU), context.DeadlineExceeded)
	worker.Say(t, "0 7")
	require.NoError(t, kept.CopyTo(context.Background(), got, 0))
	assert.Equal(t, bytes.Repeat([]byte{7}, 1000), got)
	require.Equal(t, "kept", worker.Line(t))
	require.NoError(t, kept.Release(false))

	for f, err := range ch.Frames(ctx, mempool.SubscribeOptions{Oldest: true}) {
		require.NoError(t, err)
		worker.Say(t, "2 9")
		require.NoError(t, f.Lease.CopyTo(context.Background(), got, 0))
		assert.Equal(t, bytes.Repeat([]byte{9}, 1000), got)
		require.NoError(t, f.Release())
		break
	}

	broken, err := c.TryGet(ctx, "broken", bridge.LeaseOptions{})
	require.NoError(t, err)
	worker.Kill(t)
	assert.ErrorIs(t, broken.CopyTo(t.Context(), got, 0), bridge.ErrProducerDied)
	require.NoError(t, broken.Release(false))
}

func TestPythonWaitsForWhatGoHasPromised(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=1MiB")
	c := dial(t, s)
	ctx := context.Background()
	p, err := c.TryOpenPool(ctx, "p")
	require.NoError(t, err)
	l, err := p.TryAllocate(ctx, mempool.Bytes(1000))
	require.NoError(t, err)
	b, err := l.Bytes(context.Background())
	require.NoError(t, err)
	clock, err := c.Clock(ctx)
	require.NoError(t, err)
	word, err := clock.Word(t.Context())
	require.NoError(t, err)
	ready := clock.Next(word)
	require.NoError(t, l.Publish(ctx, mempool.Publication{Name: "x", Completion: mempool.Completion{Ready: &ready}}))
	worker := rig.Python(t).Start(t, `
import sys, poolbridge
import numpy as np
with poolbridge.connect(sys.argv[1]) as client:
    with client.get("x") as lease:
        try:
            lease.wait(0.001)
        except TimeoutError as error:
            print(type(error).__name__)
        lease.wait(60)
        print(np.unique(lease.to_numpy()))
`, s.Socket)
	require.Equal(t, "WaitTimeoutError", worker.Line(t))
	copy(b, bytes.Repeat([]byte{5}, 1000))
	require.NoError(t, clock.Reach(ready))
	assert.Equal(t, "[5]", worker.Line(t))
	worker.End(t)
	require.NoError(t, l.Release(false))
}
