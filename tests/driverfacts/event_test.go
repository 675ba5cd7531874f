package driverfacts_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

// These operations of a worker use events.
func init() {
	operations["new event"] = with(func(w *worker, _ call) (reply, error) {
		e, err := w.ctx.NewEvent(cuda.EventSpec{Interprocess: true})
		if err != nil {
			return reply{}, err
		}
		h, err := e.IPCHandle()
		return reply{ID: w.keep(e), Data: h[:]}, err
	})
	operations["open event"] = with(func(w *worker, c call) (reply, error) {
		e, err := w.ctx.OpenEvent(cuda.IPCEventHandle(c.Data))
		return reply{ID: w.keep(e)}, err
	})
	operations["record"] = on(func(w *worker, e *cuda.Event, _ call) (reply, error) {
		return reply{}, e.Record(w.stream)
	})
	operations["event done"] = on(func(_ *worker, e *cuda.Event, _ call) (reply, error) {
		done, err := e.Query()
		return reply{OK: done}, err
	})
	operations["wait for event"] = on(func(w *worker, e *cuda.Event, _ call) (reply, error) {
		return reply{}, w.stream.WaitEvent(e)
	})
}

func TestAnEventOfAnotherProcessTellsWhenItsWorkIsDone(t *testing.T) {
	needEvents(t)
	needWords(t)
	fd, cpu := words(t)
	owner, user := start(t, setting{}), start(t, setting{})
	page := owner.must(call{Op: "register"}, fd).Ptr
	e := owner.must(call{Op: "new event"})
	opened := user.must(call{Op: "open event", Data: e.Data}).ID

	owner.must(call{Op: "wait for word", Ptr: page, Value: 1})
	owner.must(call{Op: "record", ID: e.ID})
	assert.False(t, user.must(call{Op: "event done", ID: opened}).OK)
	user.must(call{Op: "wait for event", ID: opened})
	assert.False(t, user.must(call{Op: "idle"}).OK, "the other process's stream waits")
	*cpu.word(0) = 1
	user.must(call{Op: "synchronize"})
	assert.True(t, user.must(call{Op: "event done", ID: opened}).OK)
	user.must(call{Op: "close", ID: opened})
}

func TestAnEventCannotBeOpenedByAnotherUserOrWithoutItsShm(t *testing.T) {
	needEvents(t)
	for name, set := range map[string]setting{
		"a private /dev/shm": {privateShm: true},
		"another user":       {uid: nobody},
	} {
		t.Run(name, func(t *testing.T) {
			owner, user := start(t, setting{}), start(t, set)
			e := owner.must(call{Op: "new event"})
			_, err := user.do(call{Op: "open event", Data: e.Data})
			require.ErrorIs(t, err, cuda.ErrMapFailed)
		})
	}
}
