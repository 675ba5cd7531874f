package integration

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// failer is a program that publishes a buffer and a frame with promises. It also publishes a second buffer, whose promise
// has failed before the publication. When the test sends a line, failer makes all promises fail, and kills itself at once.
const failer = `
import os, signal, sys, poolbridge
client = poolbridge.connect(sys.argv[1])
client.open_pool("p")
leases = [client.allocate((16,), "uint8") for _ in range(3)]
promises = [lease.promise() for lease in leases]
leases[0].publish("x", keep=True)
client.open_channel("c").publish(leases[1])
promises[2].fail("dark")
leases[2].publish("failed before")
print("published")
sys.stdin.readline()
for promise in promises:
    promise.fail(ValueError("no light"))
os.kill(os.getpid(), signal.SIGKILL)
`

func TestGoIsToldWhyAPromiseOfPythonFailed(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=1MiB")
	c := dial(t, s)
	p, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	ch, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "c", Pool: p.Info().ID, Capacity: 2, Mode: mempool.WorkQueue})
	require.NoError(t, err)
	worker := rig.Python(t).Start(t, failer, s.Socket)
	require.Equal(t, "published", worker.Line(t))
	_, err = c.TryGet(t.Context(), "failed before", bridge.LeaseOptions{})
	require.ErrorIs(t, err, bridge.ErrContentFailed)
	assert.ErrorContains(t, err, "its producer says: dark")
	reader, err := c.TryGet(t.Context(), "x", bridge.LeaseOptions{})
	require.NoError(t, err)
	for f, err := range ch.Frames(t.Context(), mempool.SubscribeOptions{}) {
		require.NoError(t, err)
		worker.Say(t, "fail")
		err = f.Lease.CopyTo(t.Context(), make([]byte, 16), 0)
		require.ErrorIs(t, err, bridge.ErrContentFailed)
		assert.ErrorContains(t, err, "its producer says: ValueError: no light")
		require.NoError(t, f.Release())
		break
	}
	err = reader.CopyTo(t.Context(), make([]byte, 16), 0)
	require.ErrorIs(t, err, bridge.ErrContentFailed)
	assert.ErrorContains(t, err, "its producer says: ValueError: no light")
	require.NoError(t, reader.Release(false))
	_, err = c.Get(t.Context(), "x", bridge.LeaseOptions{})
	require.ErrorIs(t, err, bridge.ErrContentFailed)
	assert.NotErrorIs(t, err, bridge.ErrProducerDied)
	assert.ErrorContains(t, err, "ValueError: no light")
}

// sufferer is a program that waits for a buffer and for the frames of a channel, and prints the errors.
const sufferer = `
import sys, poolbridge
with poolbridge.connect(sys.argv[1]) as client:
    lease = client.get("x")
    frames = client.subscribe("c", oldest=True)
    frame = next(frames)
    print("waits")
    for use in (lease.wait, frame.wait):
        try:
            use(60)
        except poolbridge.ContentFailedError as error:
            print(type(error).__name__, str(error).partition("its producer says: ")[2])
    frame.release()
    lease.release()
    try:
        client.get("x", timeout=60)
    except poolbridge.ContentFailedError as error:
        print(type(error).__name__, str(error).partition("its producer says: ")[2])
    try:
        next(frames)
    except poolbridge.ContentFailedError as error:
        print(type(error).__name__, str(error).partition("its producer says: ")[2])
    print(bytes(next(frames).to_numpy()))
`

func TestPythonIsToldWhyAFenceOfGoFailed(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=1MiB")
	c := dial(t, s)
	ctx := t.Context()
	p, err := c.TryOpenPool(ctx, "p")
	require.NoError(t, err)
	ch, err := c.CreateChannel(ctx, mempool.ChannelSpec{Name: "c", Pool: p.Info().ID, Capacity: 4, Mode: mempool.WorkQueue})
	require.NoError(t, err)
	clock, err := c.Clock(ctx)
	require.NoError(t, err)
	var fences []mempool.Fence
	later := func() mempool.Completion {
		word, err := clock.Word(t.Context())
		require.NoError(t, err)
		fences = append(fences, clock.Next(word))
		return mempool.Completion{Ready: &fences[len(fences)-1]}
	}
	buffer := func() *bridge.Lease {
		l, err := p.TryAllocate(ctx, mempool.Bytes(2))
		require.NoError(t, err)
		return l
	}
	l := buffer()
	require.NoError(t, l.Publish(ctx, mempool.Publication{Name: "x", Completion: later()}))
	_, err = ch.Publish(ctx, buffer(), mempool.FrameOptions{Completion: later()})
	require.NoError(t, err)
	worker := rig.Python(t).Start(t, sufferer, s.Socket)
	require.Equal(t, "waits", worker.Line(t))
	for i, ready := range fences {
		require.NoError(t, clock.Fail(ready, "no light"))
		assert.Equal(t, "ContentFailedError no light", worker.Line(t), "%d", i)
	}
	assert.Equal(t, "ContentFailedError no light", worker.Line(t), "get")
	failed := later()
	require.NoError(t, clock.Fail(*failed.Ready, "dark"))
	_, err = ch.Publish(ctx, buffer(), mempool.FrameOptions{Completion: failed})
	require.NoError(t, err)
	assert.Equal(t, "ContentFailedError dark", worker.Line(t), "the next frame")
	last := buffer()
	require.NoError(t, last.CopyFrom(ctx, 0, []byte("ok")))
	_, err = ch.Publish(ctx, last, mempool.FrameOptions{})
	require.NoError(t, err)
	assert.Equal(t, "b'ok'", worker.Line(t))
	worker.End(t)
	require.NoError(t, l.Release(false))
}
