package kinds

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

type report struct{ Checks []check }

type check struct{ Name, Kind, Status, Reason, Scenario string }

// verify runs `poolsvc verify` with additional environment variables, and asserts that every check passes.
func verify(t *testing.T, env []string, args ...string) (r report) {
	t.Helper()
	simulated(t)
	cmd := exec.Command(rig.Poolsvc(t), append([]string{"verify", "--json", "--timeout", "10m", "--python", rig.Python(t).Path}, args...)...)
	cmd.Env = append(cmd.Environ(), env...)
	out, err := cmd.Output()
	require.NoError(t, json.Unmarshal(out, &r), "%s", out)
	for _, c := range r.Checks {
		assert.Equal(t, "passed", c.Status, "%s %s: %s", c.Kind, c.Name, c.Reason)
	}
	assert.NoError(t, err)
	return r
}

func TestOnTheSimulationEveryCheckOfVerifyPasses(t *testing.T) {
	r := verify(t, nil, "--large", "64MiB", "--workers", "3")
	seen := make(map[mempool.Kind]map[string]bool)
	for _, c := range r.Checks {
		kind := mempool.Kind(c.Kind)
		if seen[kind] == nil {
			seen[kind] = make(map[string]bool)
		}
		seen[kind][c.Scenario] = true
	}
	for kind, names := range map[mempool.Kind][]string{
		mempool.Device: {"transfer/large/"},
		mempool.VMM:    {"handle/descriptor/", "mapping/exchange/", "mapping/read-only/", "mapping/mapped-twice/"},
		mempool.Legacy: {"handle/file/", "handle/dead-owner/"},
		mempool.Pinned: {"transfer/cpu-and-gpu/"},
		mempool.Host:   {"early/service/"},
	} {
		for _, name := range names {
			assert.True(t, slices.ContainsFunc(r.Checks, func(c check) bool {
				return c.Kind == string(kind) && strings.HasPrefix(c.Name, name)
			}), "no check %s for kind %s", name, kind)
		}
	}
	for kind, scenarios := range map[mempool.Kind][]string{
		mempool.Device: {"transfer", "mapping", "contexts", "order", "early", "stream", "survive"},
		mempool.VMM:    {"transfer", "mapping", "handle", "contexts", "order", "early", "stream", "survive"},
		mempool.Legacy: {"transfer", "mapping", "handle", "contexts", "order", "early", "stream"},
		mempool.Pinned: {"transfer", "mapping", "contexts", "order", "early", "stream", "survive"},
		mempool.Host:   {"transfer", "mapping", "early", "stream", "survive"},
	} {
		for _, n := range scenarios {
			assert.True(t, seen[kind][n], "no check of scenario %s for kind %s", n, kind)
		}
	}
}

func TestWhereGPUsDoNotReachEachOtherBothAreNamed(t *testing.T) {
	r := verify(t, []string{"SIMCUDA_PEER=0"}, "--only", "*/peer/*")
	assert.Len(t, r.Checks, 2*len(gpuKinds), "from Go and from Python")
}

func TestOnTheSecondGPUTheSameHolds(t *testing.T) {
	verify(t, nil, "--device", "1", "--only", "*/transfer/*/go", "--only", "*/mapping/*/go")
}

func TestWithAnotherOrderOfGPUsTheSameHolds(t *testing.T) {
	verify(t, []string{"CUDA_VISIBLE_DEVICES=1,0"}, "--only", "*/transfer/*/go")
}
