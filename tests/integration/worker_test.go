package integration

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

func dial(t *testing.T, s *rig.Service) *bridge.Client {
	t.Helper()
	c, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

// hold is a program that allocates as many buffers as its argument says, and keeps the leases.
const hold = `
import sys, poolbridge
import numpy as np
client = poolbridge.connect(sys.argv[1])
pool = client.open_pool("p")
leases = [client.allocate((1 << 18,), "uint8", pool=pool) for _ in range(int(sys.argv[2]))]
arrays = [np.from_dlpack(l) for l in leases]
for a in arrays: a[:] = 1
leases[0].publish("held")
print("ready")
sys.stdin.read()
`

func TestTheMemoryOfAKilledWorkerIsUsedAgain(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=1MiB")
	worker := rig.Python(t).Start(t, hold, s.Socket, "4")
	require.Equal(t, "ready", worker.Line(t))
	c := dial(t, s)
	ctx := context.Background()
	p, err := c.TryOpenPool(ctx, "p")
	require.NoError(t, err)
	_, err = p.TryAllocate(ctx, mempool.Bytes(1<<18))
	require.ErrorIs(t, err, bridge.ErrLimit, "the worker has it all")
	reader, err := c.TryGet(ctx, "held", bridge.LeaseOptions{})
	require.NoError(t, err)

	worker.Kill(t)
	l, err := p.Allocate(ctx, mempool.Bytes(1<<18))
	require.NoError(t, err)
	one := make([]byte, 1)
	require.NoError(t, reader.CopyTo(context.Background(), one, 1<<17))
	assert.Equal(t, byte(1), one[0], "readers of what the worker had published go on")
	_, err = c.TryGet(ctx, "held", bridge.LeaseOptions{})
	assert.ErrorIs(t, err, bridge.ErrNotFound, "its names went with it")
	require.NoError(t, reader.Release(false))
	require.NoError(t, l.Release(false))
	s.StatsWhen(t, func(st mempool.ServiceStats) bool {
		return st.Leases == 0 && st.Buffers == 0 && st.Pools[0].Reserved == st.Pools[0].Cached
	})
}

func TestAWorkerKilledWhileItWritesLeavesAFailedBuffer(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=1MiB")
	c := dial(t, s)
	ctx := context.Background()
	p, err := c.TryOpenPool(ctx, "p")
	require.NoError(t, err)
	l, err := p.TryAllocate(ctx, mempool.Bytes(16))
	require.NoError(t, err)
	require.NoError(t, l.Publish(ctx, mempool.Publication{Name: "x"}))
	require.NoError(t, l.Release(false))
	worker := rig.Python(t).Start(t, `
import sys, poolbridge
client = poolbridge.connect(sys.argv[1])
lease = client.get("x", write=True, timeout=60)
print("writing")
sys.stdin.read()
`, s.Socket)
	require.Equal(t, "writing", worker.Line(t))
	failed := make(chan error, 1)
	go func() {
		_, err := c.Get(ctx, "x", bridge.LeaseOptions{})
		failed <- err
	}()
	worker.Kill(t)
	assert.ErrorIs(t, <-failed, bridge.ErrProducerDied)
}

func TestWhatPythonPublishesGoReads(t *testing.T) {
	s := rig.Serve(t)
	worker := rig.Python(t).Start(t, `
import sys, poolbridge
import numpy as np
with poolbridge.connect(sys.argv[1]) as client:
    pool = client.create_pool("p", kind="host", max_bytes=1 << 20)
    lease = client.allocate((3, 5), "int32", pool=pool)
    np.asarray(lease)[:] = np.arange(15).reshape(3, 5)
    lease.publish("numbers")
    print("published")
    sys.stdin.read()
    del lease
`, s.Socket)
	c := dial(t, s)
	l, err := c.Get(context.Background(), "numbers", bridge.LeaseOptions{})
	require.NoError(t, err)
	assert.Equal(t, mempool.Tensor{DType: mempool.Int32, Shape: []uint64{3, 5}}, l.Tensor())
	b, err := l.Bytes(context.Background())
	require.NoError(t, err)
	for i := range 15 {
		assert.EqualValues(t, i, binary.NativeEndian.Uint32(b[4*i:]))
	}
	require.NoError(t, l.Release(false))
	worker.End(t)
}

func TestArraysOutliveTheService(t *testing.T) {
	for how, end := range map[string]func(*rig.Service, testing.TB){"killed": (*rig.Service).Kill, "told to stop": (*rig.Service).Stop} {
		t.Run(how, func(t *testing.T) { checkThatArraysOutlive(t, end) })
	}
}

func checkThatArraysOutlive(t *testing.T, end func(*rig.Service, testing.TB)) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=1MiB")
	worker := rig.Python(t).Start(t, `
import sys, poolbridge
import numpy as np
client = poolbridge.connect(sys.argv[1])
lease = client.allocate((8,), "int64", pool="p")
array = np.from_dlpack(lease)
array[:] = 5
print("ready")
sys.stdin.readline()
print(int(array.sum()))
try:
    client.allocate((8,), "int64", pool="p")
except ConnectionError as error:
    print(type(error).__name__)
`, s.Socket)
	require.Equal(t, "ready", worker.Line(t))
	end(s, t)
	worker.Say(t, "go on")
	assert.Equal(t, "40", worker.Line(t))
	assert.Equal(t, "ConnectionLostError", worker.Line(t))
}

func TestAnEarlyConsumerWaitsAndIsToldWhenItWasTooEarly(t *testing.T) {
	s := rig.Serve(t)
	worker := rig.Python(t).Start(t, `
import sys, poolbridge
client = poolbridge.connect(sys.argv[1], wait=60)
try:
    client.get("later", timeout=0.05)
except TimeoutError as error:
    print(type(error).__name__)
print(client.open_pool("p", timeout=60).name)
print(client.get("later", timeout=60).nbytes)
`, s.Socket)
	require.Equal(t, "WaitTimeoutError", worker.Line(t))
	c := dial(t, s)
	ctx := context.Background()
	p, err := c.CreatePool(ctx, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 20})
	require.NoError(t, err)
	require.Equal(t, "p", worker.Line(t))
	l, err := p.TryAllocate(ctx, mempool.Bytes(77))
	require.NoError(t, err)
	require.NoError(t, l.Publish(ctx, mempool.Publication{Name: "later"}))
	assert.Equal(t, "77", worker.Line(t))
	worker.End(t)
}
