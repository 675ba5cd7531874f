package kinds

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/cuda/pattern"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// slowReader is a program that takes frames. It makes an array of each frame for its own stream, queues a copy of the
// array in this stream, and releases the frame. Then it prints whether the stream is still busy, and how long the calls
// for the array and the release took. When the test sends a line, it prints how many elements of the copy are wrong.
const slowReader = `
import sys, time
import numpy as np, poolbridge
from cuda.core import Buffer, Device, LegacyPinnedMemoryResource
from cuda.core.utils import StridedMemoryView
gpu = Device(0)
gpu.set_current()
stream = gpu.create_stream()
with poolbridge.connect(sys.argv[1], timeout=60) as client:
    pinned = LegacyPinnedMemoryResource().allocate(int(sys.argv[2]) * 4, stream=stream)
    seen = np.from_dlpack(pinned).view(np.uint32)
    print("ready")
    frames = client.subscribe("c", oldest=True, timeout=60)
    while (frame := frames.receive()) is not None:
        start = time.perf_counter()
        view = StridedMemoryView.from_dlpack(frame.view(device="cuda"), stream_ptr=int(stream.handle))
        taken = time.perf_counter() - start
        Buffer.from_handle(view.ptr, frame.nbytes, owner=view).copy_to(pinned, stream=stream)
        number = int(frame.meta["n"])
        del view
        start = time.perf_counter()
        frame.release()
        taken += time.perf_counter() - start
        print(f"busy {not stream.record().is_done} {taken}")
        sys.stdin.readline()
        stream.sync()
        expected = (np.arange(seen.size, dtype=np.uint32) * 2 + number) ^ 0xDEADBEEF
        print(f"wrong {int((seen != expected).sum())}")
`

// A kernel of the producer has not written the frame yet. The producer can publish the frame and the consumer can take
// the frame without waiting for the kernel. The consumer's stream waits for the kernel, and then reads the content.
func TestAFrameIsHandedOverWhileAKernelIsYetToWriteIt(t *testing.T) {
	if err := mempool.Device.Probe(""); err != nil {
		t.Skip(err)
	}
	const elements = 1 << 18
	s := rig.Serve(t, "--pool", "name=p,max=64MiB,kind=device")
	ctx := t.Context()
	c, err := bridge.Dial(ctx, s.Socket)
	require.NoError(t, err)
	p, err := c.TryOpenPool(ctx, "p")
	require.NoError(t, err)
	d, err := mempool.FindDevice("")
	require.NoError(t, err)
	gpu, err := d.Retain()
	require.NoError(t, err)
	kernels, err := pattern.Load(gpu)
	require.NoError(t, err)
	stream, err := gpu.NewStream()
	require.NoError(t, err)
	gate, err := gpu.NewPinned(8)
	require.NoError(t, err)
	open := func(word uint64) { binary.NativeEndian.PutUint64(gate.Bytes(), word) }
	t.Cleanup(func() {
		open(1)
		assert.NoError(t, errors.Join(stream.Synchronize(), c.Close(), gate.Close(), kernels.Close(), stream.Close(), gpu.Close()))
	})
	q := mempool.StreamQueue(gpu, stream)
	ch, err := c.CreateChannel(ctx, mempool.ChannelSpec{Name: "c", Pool: p.Info().ID, Capacity: 2})
	require.NoError(t, err)
	reader := rig.Python(t).Start(t, slowReader, s.Socket, fmt.Sprint(elements))
	require.Equal(t, "ready", reader.Line(t))

	for n := range uint32(4) { // no kernel is held in round 0: work that is done only once may wait for a running kernel
		held := n > 0
		open(0)
		took, err := send(ctx, p, ch, n, elements, q, func(ptr cuda.DevicePtr) error {
			var hold, spin error
			if held {
				hold, spin = kernels.Hold(stream, gate.DevicePtr(), time.Minute), kernels.Spin(stream, 200*time.Millisecond)
			}
			return errors.Join(hold, spin, kernels.Fill(stream, ptr, elements, pattern.Masked{Scale: 2, Offset: n, Mask: 0xDEADBEEF}))
		})
		require.NoError(t, err)
		var busy bool
		var taken float64
		line := reader.Line(t)
		_, err = fmt.Sscanf(line, "busy %t %g", &busy, &taken)
		require.NoError(t, err, line)
		done, err := stream.Query()
		require.NoError(t, err)
		if held {
			assert.False(t, done, "somebody has waited for the producer's kernel")
			assert.True(t, busy, "the consumer's stream has not waited")
			t.Logf("published in %v, taken and released in %v", took, time.Duration(taken*1e9).Round(time.Microsecond))
		}
		open(1)
		reader.Say(t, "go on")
		assert.Equal(t, "wrong 0", reader.Line(t))
	}
	require.NoError(t, ch.Close(ctx))
	reader.End(t)
}

// send publishes a frame. The function write queues the work that writes the frame's content. send returns how long the
// calls WaitOn, Pointer and Publish took.
func send(ctx context.Context, p *bridge.Pool, ch *bridge.Channel, n uint32, elements uint64, q mempool.Queue, write func(cuda.DevicePtr) error) (time.Duration, error) {
	l, err := p.Allocate(ctx, mempool.Tensor{DType: mempool.Uint32, Shape: []uint64{elements}})
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := l.WaitOn(ctx, q); err != nil {
		return 0, err
	}
	ptr, err := l.Pointer(context.Background())
	if err != nil {
		return 0, err
	}
	took := time.Since(start)
	if err := write(cuda.DevicePtr(ptr)); err != nil {
		return 0, err
	}
	start = time.Now()
	o := mempool.FrameOptions{Completion: mempool.Completion{After: []mempool.Queue{q}}, Meta: map[string]any{"n": fmt.Sprint(n)}}
	_, err = ch.Publish(ctx, l, o)
	return (took + time.Since(start)).Round(time.Microsecond), err
}
