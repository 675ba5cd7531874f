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
		g, err := glob(pattern)
		require.NoError(t, err)
		for _, name := range names {
			assert.True(t, g.MatchString(name), "%s %s", pattern, name)
		}
	}
	g, err := glob("*/cuda.core")
	require.NoError(t, err)
	assert.False(t, g.MatchString("vmm/2/exchange/cudaxcore"), "a dot is a dot")
	g, err = glob("vmm/*")
	require.NoError(t, err)
	assert.False(t, g.MatchString("xvmm/1/a/go"))
}

func report() *Report {
	r := new(Report)
	for _, result := range []Result{
		{Name: "1/round-trip/go", Kind: "device", Status: Skipped, Reason: "no GPU"},
		{Name: "1/round-trip/numpy", Kind: "host", Status: Passed},
		{Name: "1/round-trip/go", Kind: "host", Status: Failed, Reason: "wrong"},
	} {
		r.add(result)
	}
	return r
}

func TestTheTableHasARowForEachCheckAndAColumnForEachKind(t *testing.T) {
	var b bytes.Buffer
	r := report()
	require.NoError(t, r.Table(&b))
	var rows [][]string
	for line := range strings.Lines(b.String()) {
		rows = append(rows, strings.Fields(line))
	}
	assert.Equal(t, [][]string{
		{"CHECK", "device", "host"},
		{"1/round-trip/go", "skip", "FAILED"},
		{"1/round-trip/numpy", "·", "ok"},
	}, rows)
	assert.False(t, r.OK())
}

func TestOnATerminalTheLineOfWhatIsBeingDoneIsTakenBack(t *testing.T) {
	var b bytes.Buffer
	p := &Progress{w: &b, terminal: true}
	p.begin(1, 4, "host", "1/round-trip/go")
	assert.Contains(t, b.String(), "1/4")
	assert.False(t, strings.HasSuffix(b.String(), "\n"))
	b.Reset()
	p.result(Result{Name: "1/round-trip/go", Kind: "host", Status: Passed})
	assert.True(t, strings.HasPrefix(b.String(), eraseLine))
	assert.True(t, strings.HasSuffix(b.String(), "\n"))
}

func TestElsewhereOnlyResultsAreWrittenAndOneReasonOnce(t *testing.T) {
	var b bytes.Buffer
	p := NewProgress(&b)
	p.begin(0, 2, "vmm", "a")
	assert.Empty(t, b.String())
	for range 3 {
		p.result(Result{Name: "a", Kind: "vmm", Status: Skipped, Reason: "no GPU"})
	}
	assert.Equal(t, 1, strings.Count(b.String(), "no GPU"))
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
