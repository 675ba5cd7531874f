package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// looper is a program that runs other programs, one after the other. It prints a line when a program has subscribed,
// and another line when the program has ended. If "keep" is true in a task, looper keeps all arrays that from_dlpack returns to
// the program. After the program has ended, looper checks that the content of these arrays has not changed.
const looper = `
import json, sys, traceback
import numpy, poolbridge
from poolbridge._client import channel_operations as _channel_operations
real = _channel_operations.subscribe

def subscribe(*args, **options):
    feed = yield from real(*args, **options)
    print("subscribed")
    return feed

_channel_operations.subscribe = subscribe

class Library:
    kept = None

    @staticmethod
    def from_dlpack(lease):
        array = numpy.from_dlpack(lease)
        if Library.kept is not None:
            Library.kept.append((array, array.tolist()))
        return array

for line in sys.stdin:
    task = json.loads(line)
    Library.kept = [] if task["keep"] else None
    try:
        exec(compile(task["text"], task["name"], "exec"), {"poolbridge": poolbridge, "library": Library, "__name__": "loop"})
        for array, before in Library.kept or ():
            assert array.tolist() == before, "the memory was used again"
    except BaseException:
        traceback.print_exc()
        raise
    print("ended")
`

// loop is a program that takes the frames of the channel "camera". For each frame, the program prints a line that
// begins with the frame's number.
type loop struct {
	name, text string
	variants   []string
}

// all has the variants of a loop. They differ in how long an array lives: until the loop makes the next array ("as
// written"), until the loop ends ("kept"), or until the loop asks for the next frame ("dropped").
var all = []string{"as written", "kept", "dropped"}

// documented returns the loops of README, docs and examples. If a block subscribes and does not publish, and no loop
// uses the block, the test fails.
func documented(t *testing.T) (loops []loop) {
	blocks := make(map[string]string) // blocks of Python that subscribe, by file and number
	for _, path := range append(glob(t, "README.md"), glob(t, "docs/*.md")...) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for i, block := range strings.Split(string(text), "```python\n")[1:] {
			block, _, _ = strings.Cut(block, "```")
			if strings.Contains(block, ".subscribe(") && !strings.Contains(block, ".publish(") { // test_documented.py runs the others
				blocks[fmt.Sprintf("%s %d", filepath.Base(path), i)] = block
			}
		}
	}
	take := func(name string) string {
		for key, block := range blocks {
			if strings.Contains(block, name) {
				delete(blocks, key)
				return block
			}
		}
		require.Fail(t, "no block has the loop", "%s", name)
		return ""
	}
	example := func(path string) string {
		text, err := os.ReadFile(filepath.Join(rig.Root(), "examples", path))
		require.NoError(t, err)
		return string(text)
	}
	loops = []loop{
		{"streaming.md, consumer", replaced(t, take(`for frame in client.subscribe("camera", timeout=30):`), "import numpy as library\n", ""), all},
		{"streaming.md, by hand", take(`ack="manual"`), all[:2]},
		{"pools.md, begin again", take(`"begin again:"`), all[:1]},
		{"streaming.md, asyncio", `
import asyncio
async def main():
    async with await poolbridge.connect_async() as client:
        async for frame in client.subscribe("camera"):
            array = library.from_dlpack(frame)
            print(frame.seq)
asyncio.run(main())
`, all[:2]},
		{"arrays.md, arrays", "with poolbridge.connect() as client:\n" + indented(replaced(t, take("client.subscribe(\"camera\").arrays("),
			"stream = cupy.cuda.Stream(non_blocking=True)\n", "import contextlib\nstream = contextlib.nullcontext()\n",
			"arrays(cupy.from_dlpack, stream=stream)", "arrays()",
			"        total = array.sum()", "        print(arrays.seq)\n        total = array.sum()")), all[:1]},
		{"arrays.md, asyncio", `
import asyncio
async def main():
    async with await poolbridge.connect_async() as client:
        arrays = client.subscribe("camera").arrays()
        async for array in arrays:
            print(arrays.seq, float(array.sum()))
asyncio.run(main())
`, all[:1]},
		{"examples/stream", replaced(t, example("stream/consumer.py"), "\nlibrary = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else \"numpy\")\n", "",
			"    print(\"subscribed\", flush=True)\n", ""), all},
		{"examples/pipeline, sink", replaced(t, example("pipeline/pipeline.py"), `client.subscribe("scaled"`, `client.subscribe("camera"`,
			"        total += ", "        print(frame.seq)\n        total += ", "    print(total / (256 * 256))\n", "") +
			"\n\nwith poolbridge.connect() as client:\n    sink(client, library)\n", all[:2]},
	}
	for key := range blocks {
		assert.Fail(t, "a loop that no test runs", key)
	}
	return loops
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(rig.Root(), pattern))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	return paths
}

// replaced returns a text in which, for each pair, the first string is replaced by the second string.
func replaced(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	for pair := range slices.Chunk(pairs, 2) {
		require.Equal(t, 1, strings.Count(text, pair[0]), "%q in\n%s", pair[0], text)
		text = strings.Replace(text, pair[0], pair[1], 1)
	}
	return text
}

func indented(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ") + "\n"
}

// with returns the text of a loop. For the variant "dropped", the loop drops its arrays before it asks for the next
// frame.
func (l loop) with(variant string) string {
	if variant != "dropped" {
		return l.text
	}
	return strings.TrimRight(l.text, "\n") + "\n        frame = array = image = None\n"
}

// Every consumer loop of README, docs and examples sees every frame, and then ends. The test runs each loop in every
// mode, in every variant, with one consumer and with three.
func TestEveryDocumentedLoopSeesEveryFrameAndEnds(t *testing.T) {
	const frames, capacity = 12, 4 // more frames than the channel keeps, and more than a consumer's credit
	s := rig.Serve(t, "--pool", "name=frames,kind=host,max=64MiB")
	t.Setenv("POOLBRIDGE_SOCKET", s.Socket)
	c := dial(t, s)
	p, err := c.TryOpenPool(t.Context(), "frames")
	require.NoError(t, err)
	python := rig.Python(t)
	consumers := []*rig.Script{python.Start(t, looper), python.Start(t, looper), python.Start(t, looper)}
	image := mempool.Tensor{DType: mempool.Float32, Shape: []uint64{2, 3}}
	for _, loop := range documented(t) {
		for _, variant := range loop.variants {
			for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
				for _, n := range []int{1, len(consumers)} {
					t.Run(fmt.Sprintf("%s/%s/%s/%d", loop.name, variant, mode, n), func(t *testing.T) {
						ch, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "camera", Pool: p.Info().ID, Mode: mode, Capacity: capacity})
						require.NoError(t, err)
						task, err := json.Marshal(map[string]any{"name": loop.name, "text": loop.with(variant), "keep": variant == "kept"})
						require.NoError(t, err)
						for _, consumer := range consumers[:n] {
							consumer.Say(t, string(task))
						}
						for _, consumer := range consumers[:n] {
							require.Equal(t, "subscribed", consumer.Line(t))
						}
						for i := range frames {
							l, err := p.TryAllocate(t.Context(), image)
							require.NoError(t, err)
							require.NoError(t, l.Fill(t.Context(), 0, 24, byte(i)))
							_, err = ch.Publish(t.Context(), l, mempool.FrameOptions{Meta: map[string]any{"exposure": "8"}})
							require.NoError(t, err)
						}
						require.NoError(t, ch.Close(t.Context()))
						var seen []int
						for _, consumer := range consumers[:n] {
							mine := linesUntilEnded(t, consumer)
							if mode == mempool.Broadcast {
								assert.Len(t, mine, frames)
							}
							seen = append(seen, mine...)
						}
						slices.Sort(seen)
						if mode == mempool.WorkQueue {
							assert.Len(t, seen, frames, "each once")
						}
						assert.Len(t, slices.Compact(seen), frames)
					})
					if t.Failed() {
						t.FailNow() // the state of the consumers is unknown
					}
				}
			}
		}
	}
	for _, consumer := range consumers {
		consumer.Kill(t)
	}
	s.Idle(t) // the kept arrays kept their memory until their process ended
}

// linesUntilEnded returns the numbers at the beginning of a loop's lines.
func linesUntilEnded(t *testing.T, consumer *rig.Script) (numbers []int) {
	t.Helper()
	for line := consumer.Line(t); line != "ended"; line = consumer.Line(t) {
		var number int
		_, err := fmt.Sscan(line, &number)
		require.NoError(t, err, line)
		numbers = append(numbers, number)
	}
	return numbers
}

// keeper is a program that takes two frames of a queue and keeps their arrays. It ends only when the test kills it.
const keeper = `
import sys, numpy, poolbridge
client = poolbridge.connect()
frames = client.subscribe("camera", credit=3)
arrays = [numpy.from_dlpack(next(frames)) for _ in range(2)]
print("keeping")
sys.stdin.read()
`

func TestAKilledPythonWorkersAcknowledgedFramesDoNotComeBack(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=frames,kind=host,max=1MiB")
	t.Setenv("POOLBRIDGE_SOCKET", s.Socket)
	c := dial(t, s)
	p, err := c.TryOpenPool(t.Context(), "frames")
	require.NoError(t, err)
	ch, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "camera", Pool: p.Info().ID, Mode: mempool.WorkQueue, Capacity: 8})
	require.NoError(t, err)
	for range 4 {
		l, err := p.TryAllocate(t.Context(), mempool.Bytes(8))
		require.NoError(t, err)
		_, err = ch.Publish(t.Context(), l, mempool.FrameOptions{})
		require.NoError(t, err)
	}
	victim := rig.Python(t).Start(t, keeper)
	require.Equal(t, "keeping", victim.Line(t))
	victim.Kill(t)
	s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.Sessions == 2 && st.Leases == 3 }) // leases: of frames 2 to 4
	var seen []uint64
	for f, err := range ch.Frames(t.Context(), mempool.SubscribeOptions{}) {
		require.NoError(t, err)
		seen = append(seen, f.Seq)
		require.NoError(t, f.Release())
		if len(seen) == 3 {
			require.NoError(t, ch.Close(t.Context()))
		}
	}
	assert.Equal(t, []uint64{2, 3, 4}, seen, "it asked for the second, so it was done with the first")
}
