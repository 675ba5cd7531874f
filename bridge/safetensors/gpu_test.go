package safetensors

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/harness"
)

// simulation is the folder of the simulated driver's files.
var simulation string

func TestMain(m *testing.M) {
	var err error
	if simulation, err = os.MkdirTemp("", "safetensors"); err != nil {
		panic(err)
	}
	for name, value := range map[string]string{"SIMCUDA_CONTROL": filepath.Join(simulation, "control"), "SIMCUDA_COUNTS": simulation} {
		_ = os.Setenv(name, value)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(simulation)
		os.Exit(code)
	}))
}

// fail makes calls of the simulated driver fail, or take longer, until the returned function is called.
func fail(t *testing.T, rule string) (end func()) {
	t.Helper()
	control := func(text string) {
		next := filepath.Join(simulation, "next")
		require.NoError(t, os.WriteFile(next, []byte(text), 0o600))
		require.NoError(t, os.Rename(next, filepath.Join(simulation, "control")))
	}
	control(rule)
	t.Cleanup(func() { control("") })
	return func() { control("") }
}

// live returns how many objects of the simulated driver exist that a load makes.
func live(t *testing.T) map[string]int64 {
	t.Helper()
	counts, err := os.ReadFile(filepath.Join(simulation, fmt.Sprintf("%d.counts", os.Getpid())))
	require.NoError(t, err)
	found := map[string]int64{}
	for at := 64; at+64 <= len(counts); at += 64 {
		name, _, _ := bytes.Cut(counts[at:at+48], []byte{0})
		switch string(name) {
		case "live:pinned host allocation", "live:stream", "live:event":
			found[string(name)] = int64(binary.LittleEndian.Uint64(counts[at+48:]))
		}
	}
	require.Len(t, found, 3)
	return found
}

// onGPU opens a model of 2 MiB, and allocates memory for it that the CPU does not reach. The memory is filled with 0xAB.
func onGPU(t *testing.T) (*Files, *bridge.Lease, map[string][]byte) {
	t.Helper()
	pool := pools(t)[mempool.Device]
	if pool == nil {
		t.Skip("there is no GPU")
	}
	if _, err := os.Stat(filepath.Join(simulation, fmt.Sprintf("%d.counts", os.Getpid()))); err != nil {
		t.Skip("the driver is not the simulated one")
	}
	divided(t, 16<<10, 3)
	file, content := model(t, map[string][]uint64{"a": {300_000}, "b": {200_000}, "c": {10}})
	f, err := Open(write(t, t.TempDir(), "m.safetensors", file))
	require.NoError(t, err)
	l, err := pool.TryAllocate(t.Context(), f.Tensor)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, l.Release(false))
		assert.NoError(t, f.Close())
	})
	refill(t, l)
	return f, l, content
}

// refill fills the buffer with 0xAB, and checks that nothing else comes after that.
func refill(t *testing.T, l *bridge.Lease) {
	t.Helper()
	require.NoError(t, l.Fill(t.Context(), 0, l.Grant().Bytes, 0xAB))
	seen := make([]byte, l.Grant().Bytes)
	require.NoError(t, l.CopyTo(t.Context(), seen, 0))
	assert.Equal(t, len(seen), bytes.Count(seen, []byte{0xAB}))
}

func TestAFailedCallOfTheDriverIsTheErrorOfTheLoadAndNothingIsKept(t *testing.T) {
	f, l, content := onGPU(t)
	before := live(t)
	for _, call := range []string{"cuStreamCreate nth=1", "cuMemHostAlloc nth=1", "cuMemHostAlloc nth=2", "cuEventCreate nth=2", "cuMemcpyHtoDAsync nth=1",
		"cuMemcpyHtoDAsync nth=60", "cuEventRecord nth=1", "cuEventRecord nth=7", "cuEventSynchronize nth=1", "cuEventSynchronize nth=9",
		"cuEventSynchronize nth=123", "cuStreamSynchronize times=2", "cuMemFreeHost nth=1", "cuEventDestroy nth=2", "cuStreamDestroy nth=1"} {
		t.Run(call, func(t *testing.T) {
			end := fail(t, "call="+call+" error=NOT_SUPPORTED")
			err := f.Load(t.Context(), l, nil)
			end()
			switch call {
			case "cuMemFreeHost nth=1", "cuEventDestroy nth=2", "cuStreamDestroy nth=1":
				require.NoError(t, err, "the second try succeeds")
			default:
				require.ErrorIs(t, err, bridge.ErrUnavailable)
				require.ErrorContains(t, err, "CUDA_ERROR_NOT_SUPPORTED")
			}
			if call == "cuStreamSynchronize times=2" {
				assert.Greater(t, live(t)["live:pinned host allocation"], before["live:pinned host allocation"], "the GPU may still use it")
				before = live(t)
			}
			assert.Equal(t, before, live(t))
			refill(t, l)
		})
	}
	require.NoError(t, f.Load(t.Context(), l, nil))
	compare(t, l, content)
	assert.Equal(t, before, live(t))
}

func TestALoadGoesOnWithThePiecesForWhichThereIsPageLockedMemory(t *testing.T) {
	f, l, content := onGPU(t)
	before := live(t)
	for _, call := range []string{"cuMemHostAlloc", "cuEventCreate"} {
		end := fail(t, "call="+call+" after=1 error=OUT_OF_MEMORY")
		require.NoError(t, f.Load(t.Context(), l, nil))
		end()
		compare(t, l, content)
		refill(t, l)
		end = fail(t, "call="+call+" error=OUT_OF_MEMORY")
		require.ErrorIs(t, f.Load(t.Context(), l, nil), bridge.ErrOutOfMemory, "there is no piece")
		end()
		assert.Equal(t, before, live(t))
	}
}

func TestAFileThatIsCutWhileItIsLoadedOnAGPUIsAnErrorAndAllCopiesHaveEnded(t *testing.T) {
	f, l, _ := onGPU(t)
	before := live(t)
	require.NoError(t, os.Truncate(f.files[0].Name(), f.files[0].size-100_000))
	var done atomic.Uint64
	err := f.Load(t.Context(), l, &done)
	require.ErrorIs(t, err, bridge.ErrInvalid)
	require.ErrorContains(t, err, "m.safetensors")
	assert.Less(t, done.Load(), f.Bytes)
	assert.Equal(t, before, live(t))
	refill(t, l)
}

func TestTheEndOfTheContextEndsALoadOnAGPUAndAllCopiesHaveEnded(t *testing.T) {
	f, l, content := onGPU(t)
	before := live(t)
	ctx, cancel := context.WithCancel(t.Context())
	slow := fail(t, "call=cuEventSynchronize delay_ms=100") // for more than a hundred copies
	var done atomic.Uint64
	loaded := make(chan error)
	go func() { loaded <- f.Load(ctx, l, &done) }()
	harness.Eventually(t, func() bool { return done.Load() > 0 })
	cancel()
	slow()
	require.ErrorIs(t, <-loaded, context.Canceled)
	assert.Less(t, done.Load(), f.Bytes)
	assert.Equal(t, before, live(t))
	refill(t, l)
	require.NoError(t, f.Load(t.Context(), l, nil))
	compare(t, l, content)
}

func TestASmallFileTakesNoMorePageLockedMemoryThanItNeeds(t *testing.T) {
	f, l, content := onGPU(t)
	divided(t, 4<<20, 24)
	fail(t, "call=cuMemHostAlloc after=1 error=OUT_OF_MEMORY")
	require.NoError(t, f.Load(t.Context(), l, nil))
	compare(t, l, content)
}
