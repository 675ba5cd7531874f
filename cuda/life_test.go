package cuda

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTheLastUserOfAClosedObjectEndsIt(t *testing.T) {
	var l life
	assert.True(t, l.enter())
	assert.True(t, l.enter())
	assert.False(t, l.leave(), "not closed")
	assert.False(t, l.close(), "in use")
	assert.False(t, l.enter(), "closed")
	assert.True(t, l.leave(), "last")
	assert.False(t, l.close(), "again")
}

func TestAnObjectThatCouldNotBeEndedCanBeUsedAgain(t *testing.T) {
	var l life
	assert.True(t, l.close())
	l.reopen()
	assert.True(t, l.enter())
	assert.False(t, l.leave())
	assert.True(t, l.close())
}

func TestAnUnusedObjectEndsWhenItIsClosed(t *testing.T) {
	var l life
	assert.True(t, l.close())
	assert.False(t, l.close())
	assert.False(t, l.enter())
}

func TestAnObjectEndsOnceWhoeverIsLast(t *testing.T) {
	for range 1000 {
		var l life
		var ends atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for l.enter() {
					if l.leave() {
						ends.Add(1)
						return
					}
					runtime.Gosched() // lets the other goroutines run where there is only one CPU
				}
			})
		}
		for range 2 {
			wg.Go(func() {
				if l.close() {
					ends.Add(1)
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 1, ends.Load())
	}
}

func TestALeakIsReportedWithItsLine(t *testing.T) {
	before := tracing.Load()
	TraceObjects()
	defer tracing.Store(before)
	var l life
	opened(&l, "Planted leak")
	var found bool
	for _, s := range OpenObjects() {
		found = found || len(s) > len("Planted leak at ") && s[:len("Planted leak")] == "Planted leak"
	}
	assert.True(t, found)
	ended(&l)
	for _, s := range OpenObjects() {
		assert.NotContains(t, s, "Planted leak")
	}
}
