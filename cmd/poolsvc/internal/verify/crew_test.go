package verify

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// crewOf returns a crew whose worker processes run only a shell. When the crew starts a worker, it sends the role of this worker to the Go
// channel `started`.
func crewOf(t *testing.T, limit int) (c *crew, started chan role) {
	t.Helper()
	started = make(chan role, 100)
	c = &crew{limit: limit, prepare: func(*worker, role) error { return nil }}
	c.start = func(r role) (*worker, error) {
		started <- r
		return startWorker(context.WithoutCancel(t.Context()), r.env, "cat")
	}
	t.Cleanup(func() { assert.NoError(t, c.close()) })
	return c, started
}

func TestWorkersAreStartedAheadUpToALimitAndUsedOnce(t *testing.T) {
	numpy, other := role{consumer: "numpy"}, role{consumer: "numpy", env: "A=B"}
	c, started := crewOf(t, 2)
	c.begin([]booking{{0, numpy}, {0, numpy}, {1, other}})
	c.awaitPrepared()
	assert.Len(t, started, 2)
	first, err := c.take(booking{0, numpy})
	require.NoError(t, err)
	second, err := c.take(booking{0, numpy})
	require.NoError(t, err)
	assert.NotSame(t, first, second)
	c.awaitPrepared()
	assert.Len(t, started, 3, "the next check's was started when there was room")
	third, err := c.take(booking{0, numpy})
	require.NoError(t, err, "one that was not planned is started when it is wanted")
	for _, w := range []*worker{first, second, third} {
		require.NoError(t, w.stop())
	}
}

func TestAWorkerThatItsCheckDidNotTakeIsEnded(t *testing.T) {
	c, started := crewOf(t, 2)
	c.begin([]booking{{0, role{consumer: "numpy"}}, {1, role{consumer: "numpy"}}})
	c.awaitPrepared()
	taken, err := c.take(booking{1, role{consumer: "numpy"}})
	require.NoError(t, err, "a later check may run first, and has its own")
	require.Len(t, c.waiting, 1)
	left := c.waiting[0].worker
	require.NoError(t, c.done(0))
	assert.True(t, left.gone)
	assert.False(t, taken.gone)
	require.NoError(t, taken.stop())
	require.NoError(t, c.done(1))
	assert.Len(t, started, 2)
}

func TestAWorkerThatCannotBePreparedFailsTheCheckThatTakesIt(t *testing.T) {
	c, _ := crewOf(t, 2)
	broken := errors.New("broken")
	c.prepare = func(*worker, role) error { return broken }
	c.begin([]booking{{0, role{consumer: "numpy"}}, {1, role{consumer: "numpy"}}})
	w, err := c.take(booking{0, role{consumer: "numpy"}})
	require.ErrorIs(t, err, broken)
	assert.True(t, w.gone)
	require.ErrorIs(t, c.done(1), broken, "also if it did not come to taking it")
}

func TestAWorkerThatChecksShareIsUsedAgainUnlessItIsGone(t *testing.T) {
	c, started := crewOf(t, 2)
	first, err := c.hire("numpy", "numpy")
	require.NoError(t, err)
	second, err := c.hire("numpy", "numpy")
	require.NoError(t, err)
	assert.NotSame(t, first, second, "nobody else has a worker until it is dismissed")
	c.dismiss("numpy", first)
	again, err := c.hire("numpy", "numpy")
	require.NoError(t, err)
	assert.Same(t, first, again)
	again.kill()
	c.dismiss("numpy", again)
	third, err := c.hire("numpy", "numpy")
	require.NoError(t, err)
	assert.NotSame(t, again, third)
	assert.Len(t, started, 3)
	c.dismiss("numpy", second)
	c.dismiss("numpy", third)
	require.NoError(t, c.close())
	assert.True(t, second.gone && third.gone)
}

func TestEveryWorkerThatChecksOfTheHostNeedIsPlanned(t *testing.T) {
	o := Options{Workers: 3}
	p := new(roster)
	p.Consumers = map[string][]string{"host": {"numpy"}}
	var list []chosen
	for _, c := range checksOf(mempool.Host, o, p) {
		list = append(list, chosen{check: c, kind: mempool.Host})
	}
	s := &stage{options: o, dir: t.TempDir(), crew: new(crew)}
	room := map[string]int{goConsumer: 2, "numpy": 2, crowdOf("numpy"): 1}
	count := make(map[role]int)
	for _, b := range s.plan(list, room, nil) {
		count[b.role]++
	}
	here := &scene{stage: s}
	assert.Equal(t, 1, count[here.laterService("numpy")])
	assert.Equal(t, 1, count[here.laterService("go")])
	assert.GreaterOrEqual(t, count[role{consumer: "numpy"}], room["numpy"]+o.Workers, "those that stay, and those that check one buffer at once")
	for _, b := range s.plan(list, room, map[mempool.Kind]error{mempool.Host: errors.New("not here")}) {
		t.Errorf("a worker for a kind that cannot be checked: %v", b)
	}
}
