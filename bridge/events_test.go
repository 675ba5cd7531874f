package bridge

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// awaitEvent waits for an event for which the function `is` returns true. The client c may see the event.
func awaitEvent(t testing.TB, c *Client, is func(mempool.HistoryEvent) bool) mempool.HistoryEvent {
	t.Helper()
	for after := uint64(0); ; {
		page, err := c.Events(t.Context(), after)
		require.NoError(t, err)
		for _, e := range page.Events {
			if is(e) {
				return e
			}
		}
		after = page.Next
	}
}

// ended returns the event of the end of a session.
func ended(t testing.TB, c *Client, session uint64) mempool.HistoryEvent {
	t.Helper()
	return awaitEvent(t, c, func(e mempool.HistoryEvent) bool { return e.Kind == mempool.SessionEnded && e.Session == session })
}

func TestTheHistoryTellsAKilledClientFromOneThatLeft(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, _ := torn(t, path)
	other, err := Dial(t.Context(), path)
	require.NoError(t, err)
	createPool(t, other, hostPool("news", 4096))
	require.NoError(t, other.Close())
	assert.Equal(t, mempool.SessionLeft, ended(t, c, other.Session()).Ending)

	worker := spawn(t, "hold", path, nil)
	require.Equal(t, "holding", worker.says())
	pid := worker.cmd.Process.Pid
	worker.kill()
	lost := awaitEvent(t, c, func(e mempool.HistoryEvent) bool {
		return e.Kind == mempool.SessionEnded && e.Ending == mempool.SessionLost
	})
	assert.EqualValues(t, pid, lost.PID)
	assert.NotZero(t, lost.Bytes)
	writer := awaitEvent(t, c, func(e mempool.HistoryEvent) bool { return e.Kind == mempool.WriterDied })
	assert.Equal(t, lost.Session, writer.Session)
	reclaimed := awaitEvent(t, c, func(e mempool.HistoryEvent) bool { return e.Kind == mempool.MemoryReclaimed })
	assert.Equal(t, lost.Session, reclaimed.Session)
	assert.NotZero(t, reclaimed.Bytes)
	assert.Positive(t, reclaimed.Took)
	assert.False(t, reclaimed.At.Before(lost.At))

	rude := greeted(t, path)
	rude.Send(0, &wire.Hello{Versions: []uint64{1}})
	rude.CutOff()
	failed := awaitEvent(t, c, func(e mempool.HistoryEvent) bool { return e.Program == "raw" && e.Kind == mempool.SessionEnded })
	assert.Equal(t, mempool.SessionFailed, failed.Ending)
	assert.Contains(t, failed.Text, "said hello before")
}

func TestAClientReadsWhatHappenedAndWaitsForMore(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	page, err := c.TryEvents(t.Context(), 0)
	require.NoError(t, err)
	require.Empty(t, page.Events, "a session that only looks is no news")
	createPool(t, c, hostPool("first", 4096))
	page, err = c.TryEvents(t.Context(), 0)
	require.NoError(t, err)
	require.Len(t, page.Events, 2)
	began := page.Events[0]
	assert.Equal(t, mempool.SessionBegan, began.Kind)
	assert.Equal(t, []any{c.Session(), mempool.Self().PID, mempool.Self().UID}, []any{began.Session, began.PID, began.UID})
	assert.NotEmpty(t, began.Program)
	assert.False(t, began.At.IsZero())
	next := make(chan mempool.EventPage)
	go func() {
		page, err := c.Events(context.Background(), page.Next)
		assert.NoError(t, err)
		next <- page
	}()
	createPool(t, c, hostPool("p", 1<<20))
	made := (<-next).Events[0]
	assert.Equal(t, mempool.PoolMade, made.Kind)
	assert.Equal(t, "p", made.Pool)
	assert.EqualValues(t, 1<<20, made.Bytes)
	page, err = c.TryEvents(t.Context(), made.Number)
	require.NoError(t, err)
	assert.Empty(t, page.Events)
	assert.Equal(t, made.Number, page.Next)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = c.Events(ctx, made.Number)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	_, err = c.Events(ctx, made.Number)
	assert.ErrorIs(t, err, context.Canceled)
	_, err = c.TryEvents(t.Context(), made.Number+1)
	assert.ErrorIs(t, err, ErrInvalid)
}

func TestAPageOfTheLongestEventsFitsIntoAPacket(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	name := strings.Repeat("\u202e", 85) // the longest possible name; quoted, it is twice as long
	raw := dialRaw(t, path)
	raw.Ask(1, &wire.Hello{Versions: []uint64{1}, Name: name, Features: []string{wire.FeatureTimelines, wire.FeatureChannels}}, &wire.HelloReply{})
	var pool wire.PoolReply
	raw.Ask(2, &wire.Create{Name: name, Kind: "host", MaxBytes: 1 << 20}, &pool)
	for i := range 2 * wire.MaxEvents {
		var ch wire.ChannelReply
		raw.Ask(3, &wire.MakeChannel{Name: name[:len(name)-3] + string(rune('a'+i%26)), Pool: pool.Pool.ID, Capacity: 1}, &ch)
		raw.Ask(4, &wire.CloseChannel{Channel: ch.Channel.ID}, &wire.EmptyReply{})
	}
	for after, left := uint64(0), 4*wire.MaxEvents; left > 0; {
		page, err := c.Events(t.Context(), after)
		require.NoError(t, err)
		after, left = page.Next, left-len(page.Events)
	}
}

func TestAnOperatorEndsASession(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, _ := torn(t, path)
	worker := spawn(t, "hold", path, nil)
	require.Equal(t, "holding", worker.says())
	var target mempool.SessionInfo
	for _, s := range collect(t, c.Sessions(t.Context())) {
		if s.ID != c.Session() {
			target = s
		}
	}
	require.NoError(t, c.EndSession(t.Context(), target.ID))
	assert.Equal(t, mempool.SessionClosed, ended(t, c, target.ID).Ending)
	st, err := c.Stats(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 1, st.Sessions)
	assert.NotZero(t, st.Pools[0].Held, "its process lives, and may touch what it had leased")
	for _, l := range collect(t, c.Leases(t.Context())) {
		assert.NotEqual(t, target.ID, l.Session)
	}
	worker.kill()
	awaitEvent(t, c, func(e mempool.HistoryEvent) bool { return e.Kind == mempool.MemoryReclaimed && e.Session == target.ID })
	st, err = c.Stats(t.Context())
	require.NoError(t, err)
	assert.Zero(t, st.Pools[0].Held)

	assert.ErrorIs(t, c.EndSession(t.Context(), target.ID), ErrNotFound)
	assert.ErrorIs(t, c.EndSession(t.Context(), 4711), ErrNotFound)
	assert.ErrorIs(t, c.EndSession(t.Context(), c.Session()), ErrInvalid)
}

func TestAClientWhoseSessionAnOperatorEndedIsToldSo(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, victim := dial(t, path), dial(t, path)
	require.NoError(t, c.EndSession(t.Context(), victim.Session()))
	<-victim.Done()
	_, err := victim.Stats(t.Context())
	assert.ErrorIs(t, err, ErrDisconnected)
	assert.ErrorContains(t, err, "an operator ended this session")
}

func TestSessionsOfTheServiceItselfCannotBeEnded(t *testing.T) {
	svc, path := serve(t, server.Config{})
	own, err := svc.OpenSession(mempool.Self(), "", nil)
	require.NoError(t, err)
	assert.ErrorIs(t, dial(t, path).EndSession(t.Context(), own.ID()), ErrInvalid)
}

func TestAListOfLeasesTellsWhoHasThemAndWaitsForWhat(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	c, other := dial(t, r.path), dial(t, r.path)
	p := createPool(t, c, hostPool("p", 4096))
	l := allocate(t, p, 24)
	const reads = wire.MaxList + 1
	publish(t, l, "x")
	for range reads {
		_, err := other.TryGet(t.Context(), "x", LeaseOptions{})
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := other.Get(ctx, "x", LeaseOptions{Write: true})
		ended <- err
	}()
	eventually(t, func() bool { return collect(t, c.Sessions(t.Context()))[1].Waits == 1 })
	leases := collect(t, c.Leases(t.Context()))
	require.Len(t, leases, reads+1)
	for i, got := range leases {
		assert.Equal(t, p.Info().ID, got.Pool)
		assert.EqualValues(t, 24, got.Bytes)
		assert.EqualValues(t, 4096, got.BlockBytes)
		assert.False(t, got.Write)
		assert.NotEmpty(t, got.Program)
		assert.Equal(t, mempool.Self().PID, got.PID)
		assert.WithinRange(t, got.Began, time.Now().Add(-patience), time.Now())
		if i > 0 {
			assert.Equal(t, other.Session(), got.Session)
			assert.Equal(t, "buffer 1", got.WaitsFor)
			assert.False(t, got.Since.IsZero())
		}
	}
	assert.Empty(t, leases[0].WaitsFor)
	cancel()
	assert.ErrorIs(t, <-ended, context.Canceled)
	eventually(t, func() bool { return collect(t, c.Sessions(t.Context()))[1].WaitsFor == "" })
}
