package bench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/verify"
)

// resultOf returns a result whose rounds have these medians in microseconds. Operations follow one another.
func resultOf(workload string, p50 ...float64) Result {
	r := Result{Workload: workload, Kind: "host", Bytes: 1 << 20, System: ours}
	for _, us := range p50 {
		r.Rounds = append(r.Rounds, Round{P50: &us, PerSecond: 1e6 / us})
	}
	return r
}

func reportOf(results ...Result) *Report { return &Report{Results: results, file: "before.json"} }

func TestAChangeIsLargerThanTheSpreadOfBothRunsAndThanATenth(t *testing.T) {
	for name, c := range map[string]struct {
		before, after []float64
		want          string
	}{
		"the same":                       {[]float64{100, 101, 102}, []float64{102, 101, 100}, ""},
		"slower":                         {[]float64{100, 101, 102}, []float64{130, 131, 132}, worse},
		"faster":                         {[]float64{100, 101, 102}, []float64{70, 71, 72}, better},
		"slower by less than a tenth":    {[]float64{100, 101, 102}, []float64{109, 110, 111}, ""},
		"the earlier rounds differ more": {[]float64{100, 135, 136}, []float64{130, 131, 132}, ""},
		"the present rounds differ more": {[]float64{100, 101, 102}, []float64{130, 171, 172}, ""},
		"far slower, and busy":           {[]float64{1, 1, 1}, []float64{130, 300, 400}, worse},
		"busy for most of the rounds":    {[]float64{100, 101, 102}, []float64{160, 100, 170}, ""},
		"one slow round":                 {[]float64{100, 101, 102}, []float64{100, 101, 400}, ""},
		"an even number of rounds":       {[]float64{100, 100, 100, 100}, []float64{120, 120, 130, 140}, worse},
	} {
		t.Run(name, func(t *testing.T) {
			check := compare(reportOf(resultOf("transfer", c.before...)), reportOf(resultOf("transfer", c.after...)))
			assert.Equal(t, c.want == worse, check.Worse())
			if c.want == "" {
				assert.Empty(t, check.Changed)
				assert.Equal(t, 1, check.Same)
				return
			}
			require.Len(t, check.Changed, 1)
			assert.Equal(t, c.want, check.Changed[0].Verdict)
			assert.Zero(t, check.Same)
		})
	}
}

func TestAPairWithOneWorseFigureIsWorse(t *testing.T) {
	before, now := resultOf("stream/go-go/1 consumer", 30, 31, 32), resultOf("stream/go-go/1 consumer", 10, 11, 12)
	for i := range now.Rounds {
		now.Rounds[i].PerSecond = 1000 // although each frame takes less time, fewer come
	}
	check := compare(reportOf(before), reportOf(now))
	require.Len(t, check.Changed, 1)
	assert.Equal(t, worse, check.Changed[0].Verdict)
	assert.Len(t, check.Changed[0].Figures, 2)
}

func TestResultsThatAreInOneReportOnlyAreNamed(t *testing.T) {
	theirs := resultOf("transfer", 1, 1, 1)
	theirs.System = "Queue"
	before := reportOf(resultOf("transfer", 1, 1, 1), resultOf("gone", 1, 1, 1), resultOf("few", 1), theirs)
	check := compare(before, reportOf(resultOf("transfer", 1, 1, 1), resultOf("new", 1, 1, 1), resultOf("few", 1, 1, 1)))
	assert.Equal(t, 1, check.Same)
	assert.Equal(t, []Alone{
		{"new", "host", 1 << 20, ours, "not in the file"},
		{"few", "host", 1 << 20, ours, "fewer than 3 rounds"},
		{"gone", "host", 1 << 20, ours, "not measured now"},
		{"transfer", "host", 1 << 20, "Queue", "not measured now"},
	}, check.Alone)
}

func TestWhatASecondRunDoesNotShowIsNoRegression(t *testing.T) {
	before := reportOf(resultOf("a", 1, 1, 1), resultOf("b", 1, 1, 1), resultOf("c", 2, 2, 2), resultOf("d", 1, 1, 1))
	check := compare(before, reportOf(resultOf("a", 2, 2, 2), resultOf("b", 2, 2, 2), resultOf("c", 1, 1, 1), resultOf("d", 1, 1, 1)))
	check.confirm(compare(before, reportOf(resultOf("a", 1, 1, 1), resultOf("b", 2, 2, 2), resultOf("c", 1, 1, 1), resultOf("d", 0.5, 0.5, 0.5))))
	require.Len(t, check.Changed, 2)
	assert.Equal(t, "b", check.Changed[0].Workload)
	assert.Equal(t, better, check.Changed[1].Verdict)
	assert.Equal(t, 2, check.Same)
}

func TestOfADifferentMachineNothingIsComparedAndVersionsAreNamed(t *testing.T) {
	before := verify.Machine{Arch: "amd64", CPUs: 2, Kernel: "6.1", Python: "3.11", Packages: map[string]string{"numpy": "1"}, Native: true}
	same := before
	same.Kernel, same.Packages = "6.2", map[string]string{"numpy": "2", "cupy": "14"}
	require.NoError(t, refuse("f", before, same))
	told := warnings(&Report{Machine: before, Version: "0.1", Load: 9}, &Report{Machine: same, Version: "0.2"})
	assert.Equal(t, []string{"poolsvc: 0.1 before, 0.2 now", "kernel: 6.1 before, 6.2 now", "cupy: none before, 14 now", "numpy: 1 before, 2 now",
		"the machine was busy in the earlier run: 9.0 programs ran on 2 CPUs"}, told)
	for what, change := range map[string]func(*verify.Machine){
		"CPUs: 2, and here 4":      func(m *verify.Machine) { m.CPUs = 4 },
		"architecture":             func(m *verify.Machine) { m.Arch = "arm64" },
		"GPUs: [], and here [H I]": func(m *verify.Machine) { m.Devices = []verify.GPU{{Name: "H", UUID: "I"}} },
		"simulated GPU":            func(m *verify.Machine) { m.Simulated = true },
		"native module":            func(m *verify.Machine) { m.Native = false },
	} {
		other := before
		change(&other)
		var wrong *FileError
		require.ErrorAs(t, refuse("f", before, other), &wrong, what)
		assert.Contains(t, wrong.Error(), what)
	}
}

func TestAFileOfSomethingElseIsRefused(t *testing.T) {
	folder := t.TempDir()
	good, err := json.Marshal(reportOf(resultOf("transfer", 1, 2, 3)))
	require.NoError(t, err)
	for name, c := range map[string]struct{ text, want string }{
		"good":      {string(good), ""},
		"cut":       {string(good[:40]), "unexpected end of JSON"},
		"list":      {"[]", "cannot unmarshal array"},
		"other":     {`{"checks": []}`, "no result with 3 rounds"},
		"one round": {strings.Replace(string(good), `"rounds"`, `"round"`, 1), "no result with 3 rounds"},
		"number":    {strings.Replace(string(good), `"rounds":[`, `"rounds":5,"r":[`, 1), "cannot unmarshal number"},
	} {
		path := filepath.Join(folder, name)
		require.NoError(t, os.WriteFile(path, []byte(c.text), 0o600))
		_, err := Read(path)
		if c.want == "" {
			assert.NoError(t, err)
			continue
		}
		var wrong *FileError
		require.ErrorAs(t, err, &wrong, name)
		assert.Contains(t, err.Error(), c.want, name)
		assert.Contains(t, err.Error(), "expected the JSON that poolsvc bench --json printed", name)
	}
	_, err = Read(filepath.Join(folder, "missing"))
	assert.ErrorContains(t, err, "no such file")
}

func TestACheckNamesWhatChangedAndCountsTheRest(t *testing.T) {
	before := reportOf(resultOf("a", 10, 11, 12), resultOf("b", 1, 1, 1), resultOf("c", 1, 1, 1), resultOf("d", 1, 1, 1))
	var out strings.Builder
	compare(before, reportOf(resultOf("a", 20, 22, 24), resultOf("b", 1, 1, 1))).Print(&out)
	text := out.String()
	assert.Contains(t, text, "a host 1 MiB  p50_us +100 %: 20 (median 22), before 10 (median 11)")
	assert.Contains(t, text, "  not measured now: c host 1 MiB poolbridge; d host 1 MiB poolbridge\n")
	assert.Contains(t, text, "1 changed, 1 differ by no more than the spread of their rounds, 2 were compared with nothing")
}

func TestAResultIsOfAllRoundsTogether(t *testing.T) {
	s := sceneOf("host", "")
	s.report, s.Rounds = &Report{}, 2
	s.add(Durations{Each: []time.Duration{1000, 3000}, Elapsed: 4000}, "transfer", 4)
	s.round++
	s.add(Durations{Each: []time.Duration{5000, 7000, 9000}, Elapsed: 21000}, "transfer", 4)
	require.Len(t, s.report.Results, 1)
	r := s.report.Results[0]
	assert.Equal(t, 5, r.Samples)
	assert.Equal(t, 5.0, *r.P50)
	assert.InDelta(t, 200_000, r.PerSecond, 1)
	require.Len(t, r.Rounds, 2)
	assert.Equal(t, 1.0, *r.Rounds[0].P50)
	assert.Equal(t, 7.0, *r.Rounds[1].P50)
	assert.InDelta(t, 500_000, r.Rounds[0].PerSecond, 1)
}
