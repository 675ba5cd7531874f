package verify

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// crewOf returns a crew whose workers are shells. started returns the roles of the started workers.
func crewOf(t *testing.T, limit int, planned ...booking) (c *crew, started chan role) {
	t.Helper()
	started = make(chan role, 100)
	c = &crew{limit: limit, planned: planned, prepare: func(*worker, role) error { return nil }}
	c.start = func(r role) (*worker, error) {
		started <- r
		return startWorker(context.WithoutCancel(t.Context()), r.env, "cat")
	}
	t.Cleanup(func() { assert.NoError(t, c.close()) })
	return c, started
}

func TestWorkersAreStartedAheadUpToALimitAndUsedOnce(t *testing.T) {
	numpy, other := role{consumer: "numpy"}, role{consumer: "numpy", env: "A=B"}
	c, started := crewOf(t, 2, booking{0, numpy}, booking{0, numpy}, booking{1, other})
	require.NoError(t, c.begin(0))
	c.awaitPrepared()
	assert.Len(t, started, 2)
	first, err := c.take(numpy)
	require.NoError(t, err)
	second, err := c.take(numpy)
	require.NoError(t, err)
	assert.NotSame(t, first, second)
	c.awaitPrepared()
	assert.Len(t, started, 3, "the next check's was started when there was room")
	third, err := c.take(numpy)
	require.NoError(t, err, "one that was not planned is started when it is wanted")
	for _, w := range []*worker{first, second, third} {
		require.NoError(t, w.stop())
	}
}

func TestAWorkerThatItsCheckDidNotTakeIsEnded(t *testing.T) {
	c, started := crewOf(t, 2, booking{0, role{consumer: "numpy"}}, booking{1, role{consumer: "go"}})
	require.NoError(t, c.begin(0))
	c.awaitPrepared()
	require.NoError(t, c.begin(1))
	c.awaitPrepared()
	assert.Len(t, started, 2)
	require.Len(t, c.waiting, 1)
	assert.Equal(t, "go", c.waiting[0].role.consumer)
}

func TestAWorkerThatCannotBePreparedFailsTheCheckThatTakesIt(t *testing.T) {
	c, _ := crewOf(t, 1, booking{0, role{consumer: "numpy"}})
	broken := errors.New("broken")
	c.prepare = func(*worker, role) error { return broken }
	require.NoError(t, c.begin(0))
	w, err := c.take(role{consumer: "numpy"})
	require.ErrorIs(t, err, broken)
	assert.True(t, w.gone)
}

func TestEveryWorkerThatChecksOfTheHostNeedIsPlanned(t *testing.T) {
	o := Options{Workers: 3}
	p := new(roster)
	p.Consumers = map[string][]string{"host": {"numpy"}}
	var list []chosen
	for _, c := range checksOf(mempool.Host, o, p) {
		list = append(list, chosen{check: c, kind: mempool.Host})
	}
	s := &stage{options: o, dir: t.TempDir()}
	count := make(map[role]int)
	for _, b := range s.plan(list, nil) {
		count[b.role]++
	}
	here := &scene{stage: s}
	assert.Equal(t, 1, count[here.laterService("numpy")])
	assert.Equal(t, 1, count[here.laterService("go")])
	assert.GreaterOrEqual(t, count[role{consumer: "numpy"}], 1+o.Workers, "one that stays, and those that check one buffer at once")
	for _, b := range s.plan(list, map[mempool.Kind]error{mempool.Host: errors.New("not here")}) {
		t.Errorf("a worker for a kind that cannot be checked: %v", b)
	}
}
