package anomaly

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// The test makes driver calls fail that a process makes only once: when it first needs the driver.
func TestAStartThatFailsIsTriedAgain(t *testing.T) {
	needSimulation(t)
	for _, call := range []string{"cuInit", "cuDriverGetVersion", "cuGetProcAddress"} {
		for _, f := range tried() {
			t.Run(call+" "+f.error, func(t *testing.T) {
				client, err := start("client", "SIMCUDA_FAULTS=call="+call+" nth=1 error="+f.error)
				require.NoError(t, err)
				neighbour, err := start("client")
				require.NoError(t, err)
				s, err := set(t.TempDir(), mempool.Device, &remote{process: client, device: "1"}, neighbour)
				require.NoError(t, err)
				_, failed := s.client.do("create")
				assert.NoError(t, typed(failed))
				if failed != nil {
					_, err = s.client.do("create")
					assert.NoError(t, err, "after %v", failed)
				}
				_, err = s.client.do("alloc a", "fill a", "check a", "close")
				assert.NoError(t, err)
				assert.NoError(t, s.neighbours())
				assert.NoError(t, s.shutDown())
				assert.NoError(t, client.end())
				assert.NoError(t, neighbour.end())
			})
		}
	}
}
