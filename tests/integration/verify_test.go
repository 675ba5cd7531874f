package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

type report struct {
	Machine map[string]any `json:"machine"`
	Checks  []struct {
		Name, Kind, Status, Reason string
		Seconds                    float64
	} `json:"checks"`
	Passed, Failed, Skipped int
}

// verify runs `poolsvc verify --json` and returns its report and whether its exit status was 0.
func verify(t *testing.T, args ...string) (r report, ok bool) {
	t.Helper()
	cmd := exec.Command(rig.Poolsvc(t), append([]string{"verify", "--json", "--timeout", "10m"}, args...)...)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil {
		require.ErrorAs(t, err, &exit)
		t.Logf("%s", exit.Stderr)
	}
	require.NoError(t, json.Unmarshal(out, &r), "%s", out)
	return r, err == nil
}

func TestVerifyPassesEveryCheckThatCanRunHere(t *testing.T) {
	if mempool.VMM.Probe("0") == nil {
		long(t) // without a driver, it takes a few seconds
	}
	python := rig.Python(t)
	r, ok := verify(t, "--python", python.Path, "--elements", "100003", "--large", "64MiB", "--parallel", "3", "--seed", "7", "--worker-seed", "-3")
	for _, c := range r.Checks {
		t.Logf("%s %s %s %s", c.Status, c.Kind, c.Name, c.Reason)
		assert.NotEqual(t, "failed", c.Status)
		if c.Status == "skipped" {
			assert.NotEmpty(t, c.Reason)
		}
		if mempool.Kind(c.Kind).Probe("") == nil && c.Name == "transfer/round-trip/go" {
			assert.Equal(t, "passed", c.Status, "the machine has this kind: %s", c.Reason)
		}
		if c.Kind == string(mempool.Host) {
			assert.Equal(t, "passed", c.Status)
		}
	}
	assert.True(t, ok)
	assert.Equal(t, len(r.Checks), r.Passed+r.Failed+r.Skipped)
	assert.NotZero(t, r.Passed)
	assert.NotEmpty(t, r.Machine["kernel"])
	assert.Equal(t, true, r.Machine["native"], "the package of the tests has its native module")
	kinds := map[string]bool{}
	for _, c := range r.Checks {
		kinds[c.Kind] = true
	}
	for _, k := range mempool.Kinds() {
		assert.True(t, kinds[string(k)], "no check of kind %s", k)
	}
}

func TestVerifyOfAnInterpreterWithoutThePackageSaysSo(t *testing.T) {
	python := rig.Python(t)
	cmd := exec.Command(rig.Poolsvc(t), "verify", "--python", python.Path)
	cmd.Env = append(cmd.Environ(), "PYTHONPATH=", "PYTHONNOUSERSITE=1")
	cmd.Args = append(cmd.Args[:2], "--python", "/bin/false")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "is the package installed there?")
}

func TestALibraryThatEndsItsInterpreterIsAFindingAndTheOthersAreChecked(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "jax.py"), []byte("import os\nos._exit(3)\n"), 0o600))
	t.Setenv("PYTHONPATH", folder+string(filepath.ListSeparator)+os.Getenv("PYTHONPATH"))
	r, ok := verify(t, "--python", rig.Python(t).Path, "--only", "host/transfer/round-trip/*")
	assert.True(t, ok)
	status := map[string]string{}
	for _, c := range r.Checks {
		status[c.Name] = c.Status
		if c.Status == "skipped" {
			assert.Contains(t, c.Reason, "jax cannot be imported")
			assert.Contains(t, c.Reason, "exit status 3")
		}
	}
	delete(status, "transfer/round-trip/torch") // if it is installed
	assert.Equal(t, map[string]string{"transfer/round-trip/go": "passed", "transfer/round-trip/numpy": "passed", "transfer/round-trip/python": "skipped"}, status)
}

func TestVerifyImportsNoModulesFromTheWorkingDirectory(t *testing.T) {
	python := rig.Python(t).Path
	rig.Poolsvc(t)
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("numpy.py", []byte("raise RuntimeError('not the package')\n"), 0o600))
	r, ok := verify(t, "--python", python, "--only", "host/transfer/round-trip/numpy")
	assert.True(t, ok)
	assert.Equal(t, 1, r.Passed)
}

func TestVerifyRunsOnlyWhatItIsAskedFor(t *testing.T) {
	r, ok := verify(t, "--python", rig.Python(t).Path, "--only", "host/*/go", "--only", "host/transfer/round-trip/*")
	assert.True(t, ok)
	seen := map[string]bool{}
	for _, c := range r.Checks {
		assert.Equal(t, "host", c.Kind)
		assert.True(t, strings.HasSuffix(c.Name, "/go") || strings.HasPrefix(c.Name, "transfer/round-trip/"), c.Name)
		seen[c.Name] = true
	}
	for _, name := range []string{"transfer/round-trip/go", "transfer/round-trip/numpy", "early/service/go"} {
		assert.True(t, seen[name], name)
	}
	out, err := exec.Command(rig.Poolsvc(t), "verify", "--python", rig.Python(t).Path, "--only", "tape/*").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "no check matches")
	out, err = exec.Command(rig.Poolsvc(t), "verify", "--python", rig.Python(t).Path, "--only", "transfer/*").CombinedOutput()
	require.Error(t, err, "the kind is not there")
	assert.Contains(t, string(out), "did you mean '*/transfer/*'?")
}

func TestVerifyPrintsEachCheckOnce(t *testing.T) {
	out, err := exec.Command(rig.Poolsvc(t), "verify", "--python", rig.Python(t).Path, "--only", "host/transfer/round-trip/*").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, 1, strings.Count(string(out), "transfer/round-trip/numpy"), "%s", out)
	assert.Regexp(t, `(?m), Python 3\.\S+, native module$`, string(out))
}

func TestVerifyWithNothingToCheckFails(t *testing.T) {
	r, ok := verify(t, "--python", rig.Python(t).Path, "--kind", "device", "--device", "99")
	assert.False(t, ok, "nothing passed")
	assert.Zero(t, r.Passed)
	out, err := exec.Command(rig.Poolsvc(t), "verify", "--python", rig.Python(t).Path, "--kind", "device", "--device", "99").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), fmt.Sprintf("0 passed, 0 failed, %d skipped\n", r.Skipped))
	assert.Contains(t, string(out), "nothing could be checked here, so nothing is proved: that is a failure")
}
