package verify

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestACheckWhoseWorkersAreAllUsedLetsLaterOnesGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTurns(map[string]int{"cupy": 1, "go": 2}, []turn{{0, "cupy"}, {1, "cupy"}, {2, "go"}, {3, "cupy"}})
		next := func() int {
			n, ok := q.next(t.Context())
			require.True(t, ok)
			return n.check
		}
		assert.Equal(t, 0, next())
		assert.Equal(t, 2, next())
		got := make(chan int)
		go func() { got <- next() }()
		synctest.Wait()
		select {
		case n := <-got:
			t.Errorf("check %d began while another one used the worker", n)
		default:
		}
		q.done(turn{0, "cupy"})
		assert.Equal(t, 1, <-got)
		q.done(turn{1, "cupy"})
		assert.Equal(t, 3, next())
		_, ok := q.next(t.Context())
		assert.False(t, ok, "none is left")
	})
}

func TestNoCheckBeginsOnceAllIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, ok := newTurns(map[string]int{"go": 1}, []turn{{0, "go"}}).next(ctx)
	assert.False(t, ok)
}

func TestResultsAreReportedInTheOrderOfTheChecks(t *testing.T) {
	var b bytes.Buffer
	var checks []chosen
	for _, name := range []string{"first", "second", "third"} {
		checks = append(checks, chosen{kind: mempool.Host, name: name})
	}
	l := &ledger{checks: checks, report: new(Report), progress: NewProgress(&b), results: make([]*Result, len(checks))}
	l.end(2, "", time.Second, nil)
	l.end(1, "", time.Second, errors.New("broken"))
	assert.Empty(t, b.String())
	assert.Empty(t, l.report.Checks)
	l.end(0, "", time.Second, nil)
	assert.Regexp(t, `(?s)first.*second.*broken.*third`, b.String())
	var names []string
	for _, r := range l.report.Checks {
		names = append(names, r.Name)
	}
	assert.Equal(t, []string{"first", "second", "third"}, names)
	assert.Equal(t, 2, l.report.Passed)
	assert.Equal(t, 1, l.report.Failed)
}

func TestChecksThatMeasureComeLast(t *testing.T) {
	p := new(roster)
	p.Consumers = map[string][]string{"device": {"cupy"}, "host": {"numpy"}}
	list, err := Options{Elements: 1, Workers: 1}.choose(p)
	require.NoError(t, err)
	measuring := false
	for _, c := range list {
		assert.False(t, measuring && c.scenario != order, "%s comes after checks that measure", c.name)
		measuring = measuring || c.scenario == order
	}
	assert.True(t, measuring)
}

func TestWhatLibrariesSayOfThemselvesMakesOneRoster(t *testing.T) {
	r := enrol([]work.Probe{
		{Python: "3.12", Native: true, Packages: map[string]string{"numpy": "2"}, Consumers: map[string][]string{"host": {"numpy"}, "pinned": {"numpy"}}},
		{Python: "3.12", Native: true, Packages: map[string]string{"torch": "3"}, Consumers: map[string][]string{"host": {"torch"}, "device": {}},
			Missing: map[string]string{"device": "torch is installed without support for CUDA"}},
		broken("jax", errors.New("the worker is gone")),
	})
	assert.Equal(t, map[string]string{"numpy": "2", "torch": "3"}, r.Packages)
	assert.Equal(t, []string{"go", "numpy", "torch"}, r.consumersOf(mempool.Host))
	assert.Equal(t, []string{"go"}, r.consumersOf(mempool.Device))
	assert.Equal(t, "torch is installed without support for CUDA; jax cannot be imported: the worker is gone", r.missing(mempool.Device))
	assert.Equal(t, "3.12", r.Python)
	assert.True(t, r.Native)
}
