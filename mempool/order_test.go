package mempool

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeQueue is a queue whose calls may fail. It does its work at once.
type fakeQueue struct {
	waits, signals error
	signalled      func() // called by signal; nil: nothing
	awaited        int    // calls of synchronize
}

func (q *fakeQueue) wait(context.Context, *Page, Fence) error { return q.waits }
func (q *fakeQueue) synchronize() error                       { q.awaited++; return nil }
func (q *fakeQueue) orderKey() any                            { return q }

func (q *fakeQueue) signal(page *Page, t Fence) error {
	if q.signalled != nil {
		q.signalled()
	}
	if q.signals == nil {
		page.raise(t.Word, t.Value)
	}
	return q.signals
}

func orderOf(clock *Clock) *Order {
	return &Order{
		Pages: func(context.Context, uint64) (*Page, error) { return clock.Page(), nil },
		Clock: func(context.Context) (*Clock, error) { return clock, nil },
	}
}

func TestQueuesWithoutACommonFenceAreWaitedFor(t *testing.T) {
	for _, first := range []*fakeQueue{{waits: errors.New("refused")}, {signals: ErrClosed}} {
		second := &fakeQueue{}
		fence, err := orderOf(newClock(t)).AfterOne(t.Context(), CPU, first, second)
		require.NoError(t, err)
		assert.Nil(t, fence)
		assert.Positive(t, first.awaited)
		assert.Positive(t, second.awaited)
	}
}

func TestQueuesOfWhichOneHasNoFenceAreWaitedFor(t *testing.T) {
	first, second := &fakeQueue{}, &fakeQueue{signals: ErrClosed}
	fences, err := orderOf(newClock(t)).After(t.Context(), CPU, first, second)
	require.NoError(t, err)
	assert.Empty(t, fences)
	assert.Positive(t, first.awaited)
	assert.Positive(t, second.awaited)
}

func TestAQueueDoesNotStandForWorkThatBeginsWhileItIsGiven(t *testing.T) {
	own, mine := &fakeQueue{}, &fakeQueue{}
	o := orderOf(newClock(t))
	o.Use()
	own.signalled = o.Use // by another goroutine
	require.NoError(t, o.Give(t.Context(), own, mine))
	own.signalled = nil
	for _, fences := range []int{2, 1} {
		after, err := o.After(t.Context(), own, mine)
		require.NoError(t, err)
		assert.Len(t, after, fences)
		require.NoError(t, o.Give(t.Context(), own, mine))
	}
}

func TestOthersUseAnOrderWhileAGoroutineWaitsForTheContent(t *testing.T) {
	clock := newClock(t)
	fence, asked := Fence{Timeline: clock.Timeline(), Word: 1, Value: 1}, make(chan struct{}, 1)
	o := orderOf(clock)
	o.Pages = func(context.Context, uint64) (*Page, error) {
		asked <- struct{}{}
		return clock.Page(), nil
	}
	o.Begin([]Fence{fence}, true)
	came := make(chan error)
	go func() { came <- o.Before(t.Context(), CPU) }()
	<-asked
	o.Use() // with a lock that the waiting goroutine holds, this would wait for ever
	o.Ended(&Fence{Timeline: clock.Timeline(), Word: 2, Value: 1}, Completion{})
	clock.Page().raise(fence.Word, fence.Value)
	require.NoError(t, <-came)
	assert.Equal(t, []Fence{{Timeline: clock.Timeline(), Word: 2, Value: 1}}, o.fences, "only the fence that came meanwhile is left")
}
