package bridge

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// driverCalls returns the calls that a process has made to the simulated driver so far.
func driverCalls(t *testing.T, dir string, pid int) map[string]int64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%d.counts", pid)))
	require.NoError(t, err)
	require.Equal(t, "SIMCOUNT", string(b[:8]))
	calls := make(map[string]int64)
	for i := range int(binary.LittleEndian.Uint32(b[12:])) {
		entry := b[64+64*i:][:64]
		name, _, _ := bytes.Cut(entry[:48], []byte{0})
		if n := int64(binary.LittleEndian.Uint64(entry[48:])); n != 0 {
			calls[string(name)] = n
		}
	}
	return calls
}

func TestASteadyStreamMakesNoDriverCallsButItsFences(t *testing.T) {
	counts := t.TempDir()
	sim := simulation(t, counts)
	path := socketPath(t)
	service := spawn(t, "service", path, sim)
	require.Equal(t, "serving", service.says())
	producer := spawn(t, "steady producer", path, sim)
	require.Equal(t, "ready", producer.says())
	consumer := spawn(t, "steady consumer", path, sim)
	require.Equal(t, "ready", consumer.says())
	seen := 0
	send := func(frames int) {
		producer.tell(fmt.Sprint(frames))
		require.Equal(t, "sent", producer.says())
		last := fmt.Sprint(seen + frames)
		for consumer.says() != last {
		}
		seen += frames
	}
	children := map[string]*child{"service": service, "producer": producer, "consumer": consumer}
	const frames = 100
	round := func() map[string]map[string]int64 {
		rounds := make(map[string]map[string]int64)
		for name, c := range children {
			rounds[name] = driverCalls(t, counts, c.cmd.Process.Pid)
		}
		send(frames)
		for name, c := range children {
			made := driverCalls(t, counts, c.cmd.Process.Pid)
			for call, n := range rounds[name] {
				made[call] -= n
			}
			maps.DeleteFunc(made, func(call string, n int64) bool { return call == "*" || n == 0 })
			rounds[name] = made
		}
		return rounds
	}
	steady := map[string][]string{
		"producer": {"cuMemsetD8Async", "cuStreamWriteValue64", "cuStreamWaitValue64", "cuCtxPushCurrent", "cuCtxPopCurrent"},
		"consumer": {"cuStreamWriteValue64", "cuStreamWaitValue64", "cuCtxPushCurrent", "cuCtxPopCurrent"},
	}
	more := func(calls map[string]map[string]int64) (made []string) {
		for name, of := range calls {
			for call := range of {
				if !slices.Contains(steady[name], call) {
					made = append(made, name+" "+call)
				}
			}
		}
		return made
	}
	// The programs make, export and import a block when they first need it, and register a page when a stream first waits on the page. The
	// programs make these calls early, but not at a fixed frame. So repeat the round until a round has no such call.
	var calls map[string]map[string]int64
	for range 20 {
		calls = round()
		if len(more(calls)) == 0 {
			break
		}
	}
	assert.Empty(t, more(calls))
	assert.EqualValues(t, frames, calls["producer"]["cuStreamWriteValue64"])
	assert.EqualValues(t, frames, calls["producer"]["cuMemsetD8Async"])
	for _, name := range []string{"producer", "consumer"} {
		assert.LessOrEqual(t, calls[name]["cuStreamWriteValue64"], int64(frames), name)
		assert.LessOrEqual(t, calls[name]["cuStreamWaitValue64"], int64(frames), name)
	}
	require.NoError(t, producer.stdin.Close()) // the producer then closes the channel
	for _, c := range []*child{producer, consumer} {
		require.NoError(t, c.cmd.Wait())
	}
	service.tell("")
}
