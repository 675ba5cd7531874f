package integration

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// bench returns a command. If it hangs, it ends with the stacks of its goroutines, and the test names it.
func bench(t *testing.T, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, rig.Poolsvc(t), append([]string{"bench"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	cmd.WaitDelay = 10 * time.Second // its children also have the pipe
	return cmd
}

// TestBenchMeasuresEveryWorkloadOnHostMemory tests which workloads the bench measures. It does not test how fast they
// are.
func TestBenchMeasuresEveryWorkloadOnHostMemory(t *testing.T) {
	long(t)
	cmd := bench(t, "--json", "--python", rig.Python(t).Path, "--kind", "host", "--time", "10ms", "--rounds", "1",
		"--size", "4KiB,1MiB", "--max-buffers", "40", "--max-sessions", "3", "--consumers", "1,2")
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil {
		require.ErrorAs(t, err, &exit)
		require.NoError(t, err, "%s", exit.Stderr)
	}
	var report struct {
		Machine map[string]any   `json:"machine"`
		Results []map[string]any `json:"results"`
		Service []map[string]any `json:"service"`
	}
	require.NoError(t, json.Unmarshal(out, &report), "%s", out)
	assert.NotEmpty(t, report.Machine["kernel"])
	assert.Equal(t, true, report.Machine["native"], "the package of the tests has its native module")
	seen := map[string]bool{}
	for _, r := range report.Results {
		for _, key := range []string{"workload", "kind", "bytes", "system", "p50_us", "p99_us", "per_second"} {
			assert.Contains(t, r, key)
		}
		assert.Positive(t, r["per_second"], "%v", r)
		seen[r["workload"].(string)+" "+r["system"].(string)] = true
	}
	for _, want := range []string{
		"transfer poolbridge",
		"copy/go bytes to consumer poolbridge", "transfer/by name poolbridge", "stream/go-go/1 consumer poolbridge", "stream/go-go/2 consumers poolbridge",
		"stream/go-python/1 consumer poolbridge", "stream/python-python/1 consumer poolbridge", "stream/python-go/1 consumer poolbridge",
		"stream/go-spinning python/1 consumer poolbridge", "transfer/a lease each poolbridge",
		"allocate/go poolbridge", "allocate/python poolbridge",
		"growth/10 buffers/1 sessions poolbridge", "growth/40 buffers/3 sessions poolbridge",
		"start-up/first poolbridge", "start-up/again poolbridge",
	} {
		assert.True(t, seen[want], "%s was not measured, but %v", want, seen)
	}
	require.NotEmpty(t, report.Service)
	for _, s := range report.Service {
		assert.Positive(t, s["own_bytes"])
		assert.Equal(t, s["rss_bytes"], s["own_bytes"], "host memory needs no driver")
		assert.Zero(t, s["driver_bytes"])
	}
}

// TestBenchTellsTheServicesMemoryFromTheDrivers needs a GPU or a simulated GPU.
func TestBenchTellsTheServicesMemoryFromTheDrivers(t *testing.T) {
	if err := mempool.Device.Probe(""); err != nil {
		t.Skipf("%v (without a GPU, `make simcuda` and tests/simcuda/machine run this)", err)
	}
	cmd := bench(t, "--json", "--python", rig.Python(t).Path, "--kind", "device", "--time", "10ms", "--rounds", "1",
		"--only", "growth", "--max-buffers", "1000", "--max-sessions", "2")
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil {
		require.ErrorAs(t, err, &exit)
		require.NoError(t, err, "%s", exit.Stderr)
	}
	var report struct {
		Service []struct {
			State   string
			Buffers int
			RSS     uint64 `json:"rss_bytes"`
			Driver  uint64 `json:"driver_bytes"`
			Own     uint64 `json:"own_bytes"`
		}
	}
	require.NoError(t, json.Unmarshal(out, &report), "%s", out)
	require.Len(t, report.Service, 6, "idle and busy, with 10, 1,000, and with a second session")
	driver := map[int]uint64{}
	for _, s := range report.Service {
		assert.Positive(t, s.Driver)
		assert.Less(t, s.Driver, s.RSS, "a service is more than its driver")
		assert.Equal(t, s.RSS-s.Driver, s.Own)
		if before, there := driver[s.Buffers]; there {
			assert.Equal(t, before, s.Driver, "what the driver takes depends on nothing but the buffers")
		}
		driver[s.Buffers] = s.Driver
	}
	assert.Greater(t, driver[1000], driver[10], "the driver keeps something for each block")
}

// NumPy can use memory of kind pinned, and NumPy has no streams.
func TestBenchHandsPinnedMemoryToALibraryWithoutStreams(t *testing.T) {
	if err := mempool.Pinned.Probe(""); err != nil {
		t.Skipf("%v (without a GPU, `make simcuda` and tests/simcuda/machine run this)", err)
	}
	cmd := bench(t, "--python", rig.Python(t).Path, "--kind", "pinned", "--time", "10ms", "--rounds", "1",
		"--only", "transfer", "--size", "4KiB")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func TestBenchOfAKindThatTheMachineLacksMeasuresNothingAndSaysWhy(t *testing.T) {
	cmd := bench(t, "--kind", "device", "--device", "99", "--python", rig.Python(t).Path)
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "nothing was measured: device: not available on this machine")
}

// The earlier run of this test is made up, so that the outcome does not depend on how fast this machine is.
func TestBenchSaysWhatGotWorseSinceAnEarlierRun(t *testing.T) {
	long(t)
	args := []string{"--json", "--python", rig.Python(t).Path, "--kind", "host", "--only", "allocate", "--time", "10ms", "--rounds", "3"}
	out, err := bench(t, args...).Output()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "before.json")
	for factor, want := range map[float64]string{1e-6: "worse", 1e6: "better"} { // how long an operation took in the earlier run
		var report map[string]any
		require.NoError(t, json.Unmarshal(out, &report))
		results := report["results"].([]any)
		require.Len(t, results, 3)
		for _, r := range results {
			for _, one := range r.(map[string]any)["rounds"].([]any) {
				round := one.(map[string]any)
				round["p50_us"], round["per_second"] = round["p50_us"].(float64)*factor, round["per_second"].(float64)/factor
			}
		}
		text, err := json.Marshal(report)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, text, 0o600))
		cmd := bench(t, append(args, "--check", file)...)
		now, err := cmd.Output()
		if want == "worse" {
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			assert.Equal(t, 1, exit.ExitCode())
		} else {
			require.NoError(t, err)
		}
		var checked struct {
			Results []any
			Check   struct {
				Changed []struct{ Verdict string }
				Same    int
			}
		}
		require.NoError(t, json.Unmarshal(now, &checked), "%s", now)
		assert.Len(t, checked.Results, 3)
		assert.Zero(t, checked.Check.Same)
		require.Len(t, checked.Check.Changed, 3)
		for _, one := range checked.Check.Changed {
			assert.Equal(t, want, one.Verdict)
		}
	}
	require.NoError(t, os.WriteFile(file, []byte("{}"), 0o600))
	_, err = bench(t, append(args, "--check", file)...).Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 2, exit.ExitCode())
	assert.Contains(t, string(exit.Stderr), "expected the JSON that poolsvc bench --json printed")
}

func TestBenchOfAnUnknownWorkloadSaysWhichThereAre(t *testing.T) {
	out, err := bench(t, "--only", "speed").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "transfer")
}
