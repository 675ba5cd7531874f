package verify

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
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
	r.add(Result{Name: "1/round-trip/cupy", Kind: "device", Status: Passed})
	require.NoError(t, r.Table(&b))
	var rows [][]string
	for line := range strings.Lines(b.String()) {
		rows = append(rows, strings.Fields(line))
	}
	assert.Equal(t, [][]string{
		{"CHECK", "device", "host"},
		{"1/round-trip/cupy", "ok", "·"},
		{"1/round-trip/go", "skip", "FAILED"},
		{"1/round-trip/numpy", "·", "ok"},
	}, rows)
	assert.False(t, r.OK())
}

func TestTheTableLeavesOutKindsThatTheMachineLacks(t *testing.T) {
	var b bytes.Buffer
	r := report()
	r.add(Result{Name: "1/mapped/go", Kind: "vmm", Status: Skipped, Reason: "no GPU"})
	require.NoError(t, r.Table(&b))
	assert.NotContains(t, b.String(), "vmm")
	assert.NotContains(t, b.String(), "1/mapped/go", "a row with nothing in it")
	assert.NotContains(t, b.String(), "device")
	b.Reset()
	r = new(Report)
	r.add(Result{Name: "1/mapped/go", Kind: "vmm", Status: Skipped, Reason: "no GPU"})
	require.NoError(t, r.Table(&b))
	assert.Regexp(t, `(?m)^1/mapped/go  skip$`, b.String(), "there is no other kind")
}

func TestWhyAMachineLacksKindsIsSaidOnce(t *testing.T) {
	var b bytes.Buffer
	p := NewProgress(&b)
	p.lack(map[mempool.Kind]error{mempool.Device: skipf("no GPU"), mempool.VMM: skipf("no GPU"), mempool.Pinned: skipf("too old"), mempool.Host: nil})
	assert.Equal(t, "skipped  device, vmm: no GPU\nskipped  pinned: too old\n", b.String())
	b.Reset()
	p.result(Result{Name: "a", Kind: "vmm", Status: Skipped, Reason: "no GPU"})
	assert.Empty(t, b.String())
	p.result(Result{Name: "a", Kind: "host", Status: Passed})
	assert.Contains(t, b.String(), "passed")
}

func TestOneReasonInARowIsSaidOnce(t *testing.T) {
	var b bytes.Buffer
	p := NewProgress(&b)
	p.begin(0, 2, "host", "a")
	assert.Empty(t, b.String())
	for range 3 {
		p.result(Result{Name: "a", Kind: "host", Status: Skipped, Reason: "no numpy"})
	}
	assert.Equal(t, 1, strings.Count(b.String(), "no numpy"))
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
