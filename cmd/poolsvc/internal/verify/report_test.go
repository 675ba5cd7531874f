package verify

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAGlobMatchesAcrossTheParts(t *testing.T) {
	for pattern, names := range map[string][]string{
		"*":                   {"vmm/2/exchange/go", ""},
		"vmm/*":               {"vmm/2/exchange/go"},
		"*/cupy":              {"device/1/round-trip/cupy"},
		"device/?/round-*/go": {"device/1/round-trip/go"},
		"*/cuda.core":         {"vmm/2/exchange/cuda.core"},
	} {
		g, err := glob([]string{pattern})
		require.NoError(t, err)
		for _, name := range names {
			assert.True(t, g.MatchString(name), "%s %s", pattern, name)
		}
	}
	g, err := glob([]string{"*/cuda.core"})
	require.NoError(t, err)
	assert.False(t, g.MatchString("vmm/2/exchange/cudaxcore"), "a dot is a dot")
	g, err = glob([]string{"vmm/*"})
	require.NoError(t, err)
	assert.False(t, g.MatchString("xvmm/1/a/go"))
}

func TestTheSummaryRepeatsFailuresAndSaysWhyChecksWereSkipped(t *testing.T) {
	var b bytes.Buffer
	r := new(Report)
	for _, result := range []Result{
		{Name: "transfer/peer/go", Kind: "device", Consumer: "go", Status: Skipped, Reason: "one GPU"},
		{Name: "transfer/peer/cupy", Kind: "device", Consumer: "cupy", Status: Skipped, Reason: "one GPU"},
		{Name: "transfer/peer/go", Kind: "vmm", Consumer: "go", Status: Skipped, Reason: "one GPU"},
		{Name: "transfer/a/go", Kind: "pinned", Consumer: "go", Status: Skipped, Reason: "too old"},
		{Name: "transfer/b/go", Kind: "pinned", Consumer: "go", Status: Skipped, Reason: "too old"},
		{Name: "transfer/c/go", Kind: "pinned", Consumer: "go", Status: Skipped, Reason: "too old"},
		{Name: "transfer/d/go", Kind: "pinned", Consumer: "go", Status: Skipped, Reason: "too old"},
		{Name: "transfer/round-trip/numpy", Kind: "host", Consumer: "numpy", Status: Passed},
		{Name: "transfer/round-trip/go", Kind: "host", Consumer: "go", Status: Failed, Reason: "wrong"},
	} {
		r.add(result)
	}
	r.Summary(&b)
	lines := strings.Split(b.String(), "\n")
	require.Len(t, lines, 4, b.String())
	assert.Regexp(t, `^failed   host    transfer/round-trip/go +0s  wrong$`, lines[0])
	assert.Equal(t, []string{"skipped  transfer/peer of device, vmm: one GPU", "skipped  4 checks of pinned: too old", ""}, lines[1:])
	assert.False(t, r.OK())
}

func TestProgressPrintsChecksThatRan(t *testing.T) {
	var b bytes.Buffer
	p := NewProgress(&b)
	p.begin(0, 2, "host", "a")
	p.result(Result{Name: "a", Kind: "vmm", Status: Skipped, Reason: "no GPU"})
	assert.Empty(t, b.String(), "the summary has it")
	p.result(Result{Name: "a", Kind: "host", Status: Passed})
	assert.Contains(t, b.String(), "passed")
}

func TestASkipIsNoFailure(t *testing.T) {
	status, reason := resultOf(skipf("there is no %s", "GPU"))
	assert.Equal(t, Skipped, status)
	assert.Equal(t, "there is no GPU", reason)
	status, _ = resultOf(errors.New("x"))
	assert.Equal(t, Failed, status)
	status, _ = resultOf(nil)
	assert.Equal(t, Passed, status)
}
