package bench

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/verify"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestPercentileIsTheNearestRank(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i)
	}
	for _, c := range []struct {
		each  []time.Duration
		share float64
		want  time.Duration
	}{
		{nil, 0.5, 0},
		{[]time.Duration{7}, 0.999, 7},
		{[]time.Duration{2, 1}, 0.5, 1},
		{[]time.Duration{3, 1, 2}, 0.5, 2},
		{[]time.Duration{9, 1}, 0.99, 9},
		{hundred, 0.99, 99},
	} {
		assert.Equal(t, c.want, Durations{Each: c.each}.Percentile(c.share), "%v of %v", c.share, c.each)
	}
}

func TestResultOfFewMeasurementsHasNoP999(t *testing.T) {
	d := Durations{Each: []time.Duration{3000, 1000, 2000}, Elapsed: time.Millisecond}
	r := d.result("transfer", "host", 4)
	assert.Equal(t, 3000.0, r.PerSecond)
	text, err := json.Marshal(r)
	require.NoError(t, err)
	assert.JSONEq(t, `{"workload": "transfer", "kind": "host", "bytes": 4, "system": "poolbridge", "p50_us": 2, "p99_us": 3,
		"per_second": 3000, "samples": 3}`, string(text))
	d.Each = slices.Repeat(d.Each, 400)
	assert.Equal(t, 3.0, *d.result("transfer", "host", 4).P999)
}

func TestStopwatchForgetsTheWarmUp(t *testing.T) {
	w := newStopwatch(time.Nanosecond)
	rounds := 0
	for w.more() {
		w.took(time.Duration(rounds))
		rounds++
	}
	d := w.durations()
	assert.Len(t, d.Each, leastSamples)
	assert.Greater(t, rounds, leastSamples, "the first is no measurement")
	assert.NotContains(t, d.Each, time.Duration(0))
}

func TestOptionsNameWhatThereIs(t *testing.T) {
	assert.NoError(t, Options{Time: 1, Rounds: 1, Only: Workloads()}.Validate())
	assert.ErrorContains(t, Options{Time: 1, Rounds: 1, Only: []string{"speed"}}.Validate(), "transfer")
	assert.ErrorContains(t, Options{Time: 1, Rounds: 1, Kinds: []mempool.Kind{"core"}}.Validate(), "host")
	assert.ErrorContains(t, Options{Time: 1, Rounds: 1, Consumers: []int{8, 1}}.Validate(), "ascending")
	assert.ErrorContains(t, Options{Time: 1, Rounds: 1, Consumers: []int{1, 1}}.Validate(), "ascending")
	assert.ErrorContains(t, Options{Rounds: 1}.Validate(), "more than 0")
	assert.ErrorContains(t, Options{Time: 1}.Validate(), "at least 1 round")
	assert.ErrorContains(t, Options{Time: 1, Rounds: 2, Before: &Report{}}.Validate(), "at least 3 rounds")
}

func TestSizesForPeople(t *testing.T) {
	for bytes, want := range map[uint64]string{0: "", 12: "12 B", 1 << 10: "1 KiB", 1 << 20: "1 MiB", 3 << 30: "3 GiB", 1025: "1025 B"} {
		assert.Equal(t, want, sizeOf(bytes))
	}
}

func TestTheHeadSaysWhetherPythonHasTheNativeModule(t *testing.T) {
	for native, want := range map[bool]string{
		true:  "Python 3.11.2, poolbridge 0.1.0, native module\n",
		false: "Python 3.11.2, poolbridge 0.1.0, no native module\n",
	} {
		var out strings.Builder
		printPython(&out, verify.Machine{Python: "3.11.2", Packages: map[string]string{"poolbridge": "0.1.0"}, Native: native})
		assert.Equal(t, want, out.String())
	}
}

func TestABusyMachineIsSaidToBeOne(t *testing.T) {
	var out strings.Builder
	printLoad(&out, 0.9, 2)
	assert.Empty(t, out.String())
	printLoad(&out, 1.5, 2)
	assert.Contains(t, out.String(), "busy: 1.5 programs ran on 2 CPUs")
	n, err := load()
	require.NoError(t, err)
	assert.GreaterOrEqual(t, n, 0.0)
	assert.Less(t, n, 1e5)
}
