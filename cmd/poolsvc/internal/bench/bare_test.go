package bench

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// TestMain runs Bare instead of the tests if the only argument is BareCommand. So a test can start the test program as a process that runs
// Bare.
func TestMain(m *testing.M) {
	if slices.Equal(os.Args[1:], []string{BareCommand}) {
		if err := Bare(context.Background(), os.Stdin, os.Stdout); err != nil {
			_, _ = os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestBareMakesAsManyBlocksAsItIsTold(t *testing.T) {
	const pool = `"pool": {"Name": "p", "Kind": "host", "MaxBytes": 65536}, "bytes": 4096`
	var out bytes.Buffer
	require.NoError(t, Bare(t.Context(), strings.NewReader(`{} {`+pool+`} {`+pool+`, "blocks": 3} {`+pool+`, "blocks": 16}`), &out))
	assert.Equal(t, "0\n0\n3\n16\n", out.String())
	assert.ErrorContains(t, Bare(t.Context(), strings.NewReader(`{`+pool+`, "blocks": 17}`), &out), "has room for 16 blocks of 4096, not for 17")
	assert.ErrorIs(t, Bare(t.Context(), strings.NewReader(`{"pool": {"Name": "p", "Kind": "tape", "MaxBytes": 1}}`), &out), mempool.ErrInvalid)
	assert.ErrorContains(t, Bare(t.Context(), strings.NewReader(`{"pool": {"Name": "p", "Kind": "host", "MaxBytes": 65536}, "blocks": 1}`), &out),
		"says the bytes of each block, at least 1, not 0")
	assert.Error(t, Bare(t.Context(), strings.NewReader(`{"pool": `), &out))
}

// sceneOf returns the scene of a kind. poolsvc is the path of the program that the scene starts.
func sceneOf(kind mempool.Kind, poolsvc string) *scene {
	return &scene{Options: Options{Poolsvc: poolsvc}, kind: kind}
}

func TestMemoryOfTheCPUNeedsNoDriver(t *testing.T) {
	s := sceneOf(mempool.Host, "/there/is/no/such/program")
	driver, err := s.driverBytes(t.Context(), s.poolSpec(ballastBytes), []int{10})
	require.NoError(t, err)
	assert.Zero(t, driver[10])
}

func TestTheDriversMemoryIsThatOfAProcessThatOnlyHasTheBlocks(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	for _, kind := range mempool.Kinds() {
		if kind == mempool.Host {
			continue
		}
		t.Run(string(kind), func(t *testing.T) {
			if err := kind.Probe(""); err != nil {
				t.Skipf("%v (without a GPU, `make simcuda` and tests/simcuda/machine run this)", err)
			}
			s := sceneOf(kind, self)
			few, many := 10, 16 // for kinds whose smallest block has 2 MiB: 16 blocks fit into the pool
			if kind == mempool.Device || kind == mempool.Pinned {
				many = 5000
			}
			driver, err := s.driverBytes(t.Context(), s.poolSpec(uint64(many)*ballastBytes), []int{few, many})
			require.NoError(t, err)
			assert.Positive(t, driver[few])
			if many == 5000 {
				assert.Greater(t, driver[many], driver[few], "the driver keeps something for each block")
			}
		})
	}
}

func TestAProcessThatCannotTellTheDriversMemoryIsAnError(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"fails":             {"echo no driver today >&2; exit 3", "exit status 3: no driver today"},
		"ends":              {"exit 0", "a process that only uses CUDA"},
		"answers otherwise": {"echo 7; cat >/dev/null", "it has 7 blocks, not the 0 it was told to make"},
	} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "poolsvc")
			require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"+c.script+"\n"), 0o700))
			s := sceneOf(mempool.Device, program)
			_, err := s.driverBytes(t.Context(), s.poolSpec(ballastBytes), []int{10})
			assert.ErrorContains(t, err, c.want)
		})
	}
	s := sceneOf(mempool.Device, "/there/is/no/such/program")
	_, err := s.driverBytes(t.Context(), s.poolSpec(ballastBytes), []int{10})
	assert.ErrorContains(t, err, "cannot be started")
}

func TestGrowthNeverGoesBackAndMeasuresNothingTwice(t *testing.T) {
	assert.Equal(t, []extent{{10, 1}, {40, 1}, {40, 3}}, Options{MaxBuffers: 40, MaxSessions: 3}.extents())
	assert.Equal(t, []extent{{10, 1}, {1000, 1}, {10_000, 1}, {100_000, 1}, {100_000, 100}, {100_000, 500}},
		Options{MaxBuffers: 100_000, MaxSessions: 500}.extents())
}
