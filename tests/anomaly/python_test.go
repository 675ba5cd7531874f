package anomaly

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// worker is a program that does a task for each line that the test sends. The task "work" reads the published buffer.
// The task "alone" uses the GPU with cuda.core and without poolbridge. The worker prints "fine", or the error of the
// task.
const worker = `
import gc, os, sys
import numpy as np
import poolbridge
from cuda.core import Device

def work(path):
    with poolbridge.connect(path, timeout=60) as client:
        lease = client.get("x")
        array = lease.to_numpy().copy()
        lease.release()
    assert (array == 120).all(), array

def alone():
    device = Device(1)
    device.set_current()
    stream = device.create_stream()
    buffer = device.memory_resource.allocate(4096, stream=stream)
    stream.sync()
    buffer.close(stream)
    stream.sync()
    stream.close()

print(os.getpid())
for line in sys.stdin:
    task, _, path = line.strip().partition(" ")
    said = "fine"
    try:
        work(path) if task == "work" else alone()
    except poolbridge.PoolbridgeError as error:
        said = f"typed {type(error).__name__}: {error}".replace("\n", " ")
    except BaseException as error:
        said = f"untyped {type(error).__name__}: {error}".replace("\n", " ")
    gc.collect()  # what is counted next is what it keeps
    print(said)
`

// kept returns an error if a worker has more memory of other processes than before.
func kept(pid int, before estate) error {
	after, err := estateOf(pid)
	for _, object := range []string{"imported pool", "imported pointer", "opened legacy handle", "mapping", "address reservation"} {
		if more := after.live[object] - before.live[object]; more > 0 {
			err = errors.Join(err, fmt.Errorf("it has %d more: %s", more, object))
		}
	}
	return err
}

func TestAPythonWorkerGetsATypedErrorAndGoesOn(t *testing.T) {
	needSimulation(t)
	python := rig.Python(t)
	for _, k := range triedKinds() {
		t.Run(string(k), func(t *testing.T) {
			client, err := start("client")
			require.NoError(t, err)
			neighbour, err := start("client")
			require.NoError(t, err)
			s, err := set(t.TempDir(), k, &remote{process: client, device: "1"}, neighbour)
			require.NoError(t, err)
			_, err = s.client.do("create", "alloc x", "byte x", "publish x")
			require.NoError(t, err)
			script := python.Start(t, worker)
			pid, err := strconv.Atoi(script.Line(t))
			require.NoError(t, err)
			say := func(what string) string {
				script.Say(t, what+" "+s.client.path)
				return script.Line(t)
			}
			require.Equal(t, "fine", say("work"))
			require.Equal(t, "fine", say("alone"))
			runs := 0
			for _, f := range tried() {
				if f.once && k != kinds[0] {
					continue
				}
				for n := 1; ; n++ {
					before, err := estateOf(pid)
					require.NoError(t, err)
					require.NoError(t, driver.arm(pid, f.rule(n)))
					said := say("work")
					calls, err := driver.disarm()
					require.NoError(t, err)
					if len(calls) == 0 {
						assert.Equal(t, "fine", said)
						break
					}
					runs++
					where := fmt.Sprintf("call %d of the worker, %v, fails with %s: %s", n, calls, f.error, said)
					assert.False(t, strings.HasPrefix(said, "untyped"), where)
					assert.Equal(t, "fine", say("alone"), where)
					assert.Equal(t, "fine", say("work"), where)
					if k == mempool.Device {
						continue // cuda.core does not report memory that it could not free
					}
					require.NoError(t, eventually(func() error { return kept(pid, before) }), where)
				}
			}
			t.Logf("%d runs", runs)
			script.End(t)
			_, err = s.client.do("close")
			require.NoError(t, err)
			require.NoError(t, s.neighbours())
			require.NoError(t, s.shutDown())
			require.NoError(t, client.end())
			require.NoError(t, neighbour.end())
			driver.misuse(nil)
		})
	}
}
