package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// Each program of the guide makes its pool with one line. The test runs this line in eight programs at the same time.
func TestProgramsThatStartTogetherAllGetTheirPool(t *testing.T) {
	python := rig.Python(t)
	t.Setenv("SIMCUDA_FAULTS", "call=cuMemPoolCreate delay_ms=200") // on the simulated driver, making a pool takes long
	for _, file := range []string{"docs/streaming.md", "examples/model/holder.py", "examples/pipeline/pipeline.py"} {
		text, err := os.ReadFile(filepath.Join(rig.Root(), file))
		require.NoError(t, err)
		var line string
		for shown := range strings.Lines(string(text)) {
			if strings.HasPrefix(strings.TrimSpace(shown), "client.create_pool(") {
				line = strings.TrimSpace(shown)
			}
		}
		require.NotEmpty(t, line, file)
		for _, kind := range []mempool.Kind{mempool.Host, mempool.Device} {
			if kind == mempool.Device && (kind.Probe("") != nil || !strings.Contains(line, "kind=kind")) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", file, kind), func(t *testing.T) {
				s := rig.Serve(t)
				workers := make([]*rig.Script, 8)
				for i := range workers {
					workers[i] = python.Start(t, `
import sys, poolbridge
kind = sys.argv[2]
with poolbridge.connect(sys.argv[1], timeout=60) as client:
    print("ready", flush=True)
    sys.stdin.readline()
    `+line+`
    client.allocate(4, "uint8", timeout=60).release()
    print(client.stats().pools[0].pool.id)
`, s.Socket, string(kind))
				}
				for _, w := range workers {
					require.Equal(t, "ready", w.Line(t))
				}
				for _, w := range workers {
					w.Say(t, "go")
				}
				for _, w := range workers {
					assert.Equal(t, "1", w.End(t))
				}
			})
		}
	}
}
