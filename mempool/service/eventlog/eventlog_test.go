package eventlog

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/ration"
	"github.com/poolbridge/poolbridge/mempool"
)

func everything(*Entry) bool { return true }

// fill notes n events, each of which is recorded: no cause has more of them than ration.Burst.
func fill(j *Events, n int) {
	for i := range n {
		j.Note(Entry{HistoryEvent: mempool.HistoryEvent{Kind: mempool.LimitMet, UID: uint32(i / ration.Burst)}})
	}
}

func TestEventsAreNumberedAndTheOldestAreForgotten(t *testing.T) {
	j := New(nil)
	fill(j, Capacity+10)
	page := j.Read(0, 7, everything)
	assert.EqualValues(t, 10, page.Lost)
	require.Len(t, page.Events, 7)
	for i, e := range page.Events {
		assert.EqualValues(t, 11+i, e.Number)
	}
	assert.EqualValues(t, 17, page.Next)
	page = j.Read(page.Next, 2*Capacity, everything)
	assert.Zero(t, page.Lost)
	assert.Len(t, page.Events, Capacity-7)
	assert.Equal(t, j.Last(), page.Next)
}

func TestAnEventWakesOnlyThoseWhoMayBeToldOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := New(nil)
		came := make(chan mempool.EventPage, 1)
		go func() {
			page, _, err := j.Await(t.Context(), 0, 9, func(e *Entry) bool { return e.UID == 1 }, nil, nil)
			assert.NoError(t, err)
			came <- page
		}()
		synctest.Wait()
		require.Len(t, j.watchers, 1)
		var before *watcher
		for before = range j.watchers {
		}
		j.Note(Entry{HistoryEvent: mempool.HistoryEvent{Kind: mempool.LimitMet, UID: 2}})
		synctest.Wait()
		assert.Contains(t, j.watchers, before, "it waits on, and was not woken")
		assert.Empty(t, came)
		j.Note(Entry{HistoryEvent: mempool.HistoryEvent{Kind: mempool.LimitMet, UID: 1}})
		page := <-came
		require.Len(t, page.Events, 1)
		assert.EqualValues(t, 2, page.Events[0].Number)
		assert.Empty(t, j.watchers)
	})
}

func TestAWaitThatEndsWithoutAnEventLeavesNothingBehind(t *testing.T) {
	j := New(nil)
	past := make(chan struct{})
	close(past)
	late := make(chan time.Time, 1)
	late <- time.Time{}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, over, err := j.Await(t.Context(), 0, 9, everything, nil, past)
	assert.NoError(t, err)
	assert.True(t, over)
	page, over, err := j.Await(t.Context(), 0, 9, everything, late, nil)
	assert.NoError(t, err)
	assert.False(t, over)
	assert.Empty(t, page.Events)
	_, _, err = j.Await(gone, 0, 9, everything, nil, nil)
	assert.ErrorIs(t, err, context.Canceled)
	assert.Empty(t, j.watchers)
}

func TestTheEventForEventsLeftOutSaysHowManyTheyWere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := New(nil)
		for range ration.Burst + 3 {
			j.Note(Entry{HistoryEvent: mempool.HistoryEvent{Kind: mempool.FrameLost, Count: 8, Text: "8 frames are lost"}})
		}
		j.Close()
		events := j.Read(0, Capacity, everything).Events
		require.Len(t, events, ration.Burst+1)
		last := events[ration.Burst]
		assert.Equal(t, 24, last.Count)
		assert.Contains(t, last.Text, "the last of 3 such events")
		assert.EqualValues(t, 8*(ration.Burst+3), j.Counts().Events[mempool.FrameLost])
	})
}

func TestALongTextIsCutWithoutBreakingACharacter(t *testing.T) {
	j := New(nil)
	j.Note(Entry{HistoryEvent: mempool.HistoryEvent{Kind: mempool.LimitMet, Text: strings.Repeat("ä", maxText)}})
	text := j.Read(0, 1, everything).Events[0].Text
	assert.LessOrEqual(t, len(text), maxText)
	assert.True(t, strings.HasSuffix(text, "ä…"))
}

func TestAFrequentEventIsToldOfOnceInAWhileWithItsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := New(nil)
		tell := func(limit string) any {
			count, now := j.Refused(limit)
			return []any{count, now}
		}
		assert.Equal(t, []any{1, true}, tell("leases"))
		for range 3 {
			assert.Equal(t, []any{0, false}, tell("leases"))
		}
		assert.Equal(t, []any{1, true}, tell("names"), "another limit")
		time.Sleep(Rest)
		assert.Equal(t, []any{4, true}, tell("leases"))
	})
}

func TestWhatIsFullStaysFullWhileItHasRoomForOnlyOneMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Lag
		assert.False(t, l.Look(3, 4), "it was never full")
		assert.True(t, l.Look(4, 4))
		since := l.Since
		time.Sleep(time.Second)
		assert.True(t, l.Look(3, 4))
		assert.Equal(t, since, l.Since)
		l.Told = true
		assert.False(t, l.Look(2, 4))
		assert.Equal(t, Lag{}, l)
	})
}

func TestEventsAreInTheOrderOfTheirTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := New(nil)
		for range ration.Burst + 1 { // the last is left out, and recorded later
			j.Note(Entry{HistoryEvent: mempool.HistoryEvent{Kind: mempool.FrameLost}})
		}
		time.Sleep(Rest / 2)
		j.Note(Entry{HistoryEvent: mempool.HistoryEvent{Kind: mempool.LimitMet, At: time.Now().Add(-time.Hour)}})
		time.Sleep(Rest)
		synctest.Wait()
		events := j.Read(0, Capacity, everything).Events
		require.Len(t, events, ration.Burst+2)
		assert.True(t, slices.IsSortedFunc(events, func(a, b mempool.HistoryEvent) int { return a.At.Compare(b.At) }))
	})
}

func TestTheNumbersOfEventsGoOnAfterThoseOfAnotherJournal(t *testing.T) {
	j := New(nil)
	j.Continue(70)
	j.Note(Entry{HistoryEvent: mempool.HistoryEvent{Kind: mempool.PoolMade}})
	page := j.Read(70, 10, everything)
	require.Len(t, page.Events, 1)
	assert.EqualValues(t, 71, page.Events[0].Number)
	assert.Zero(t, page.Lost)
	fill(j, Capacity+5)
	page = j.Read(60, Capacity, everything)
	assert.EqualValues(t, 70+6-60, page.Lost)
	assert.EqualValues(t, 77, page.Events[0].Number)
}
