package server

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

func TestTooManyRequestsThatWaitAreRefusedAndTheOthersWaitOn(t *testing.T) {
	r := start(t, Config{}, unhurried)
	c := greeted(t, r.path)
	c.Ask(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 1 << 20}, &wire.PoolReply{})
	for q := range uint32(256) {
		c.Send(1000+q, &wire.Get{Name: "x", Wait: longWait})
	}
	c.Refused(3, &wire.Get{Name: "x", Wait: longWait}, wire.CodeLimit)
	c.Refused(4, &wire.Open{Name: "q", Wait: longWait}, wire.CodeLimit)
	c.Refused(5, &wire.Get{Name: "x"}, wire.CodeNotFound)

	var lease wire.GrantReply
	c.Ask(6, &wire.Alloc{Pool: 1, Tensor: wire.Tensor{DType: "uint8"}}, &lease)
	c.Send(0, &wire.Publish{Lease: lease.Grant.ID, Name: "x"})
	seen := make(map[uint32]bool)
	for len(seen) < 256 {
		packet, err := c.Recv()
		require.NoError(t, err)
		q, err := wire.DecodeReply(packet, &lease)
		require.NoError(t, err)
		require.False(t, seen[q])
		seen[q] = true
		require.Nil(t, lease.Grant.Export, "the session has it")
	}
	c.Send(7, &wire.Get{Name: "y", Wait: longWait})
	c.Ask(8, &wire.StatsRequest{}, &wire.StatsReply{})
}

func TestTheServiceHasSoManyRequestsThatWait(t *testing.T) {
	r := start(t, Config{MaxWaits: 2}, unhurried)
	a, b := greeted(t, r.path), greeted(t, r.path)
	for q := range uint32(2) {
		a.Send(2+q, &wire.Get{Name: "x", Wait: longWait})
	}
	a.Ask(9, &wire.StatsRequest{}, &wire.StatsReply{}) // after this reply, both requests wait
	b.Send(2, &wire.Get{Name: "x", Wait: longWait})
	err := b.Reply(2, &wire.GrantReply{})
	require.ErrorIs(t, err, wire.CodeLimit)
	assert.ErrorContains(t, err, "--limit waits=N")
	b.Refused(3, &wire.Get{Name: "x"}, wire.CodeNotFound)
	a.Send(0, &wire.Cancel{Request: 2})
	require.ErrorIs(t, a.Reply(2, &wire.GrantReply{}), wire.CodeCancelled)
	b.Send(4, &wire.Get{Name: "x", Wait: longWait})
	b.Ask(9, &wire.StatsRequest{}, &wire.StatsReply{})
	require.NoError(t, a.Conn.Close())
	c := greeted(t, r.path)
	require.Eventually(t, func() bool { return r.waits.Load() == 1 }, patience, time.Millisecond, "the requests of a session end with it")
	c.Send(2, &wire.Get{Name: "x", Wait: longWait})
	c.Ask(9, &wire.StatsRequest{}, &wire.StatsReply{})
	assert.EqualValues(t, 2, r.waits.Load())
}

func TestSomeRequestsThatWaitAreOnlyForTheServicesOwnUser(t *testing.T) {
	r := start(t, Config{MaxWaits: 256}, unhurried)
	theirs, own := r.as(t, passerby), greeted(t, r.path)
	for q := range uint32(256) {
		theirs.Send(10+q, &wire.Get{Name: "x", Wait: longWait})
	}
	theirs.Send(9, &wire.StatsRequest{}) // its reply comes after all requests wait or are refused
	err := theirs.Reply(10+255, &wire.GrantReply{})
	require.ErrorIs(t, err, wire.CodeLimit)
	require.ErrorContains(t, err, "--limit waits=N")
	own.Send(2, &wire.Get{Name: "x", Wait: longWait})
	own.Ask(3, &wire.StatsRequest{}, &wire.StatsReply{}) // after this reply, the request waits
	require.EqualValues(t, 256, r.waits.Load())
	own.Send(4, &wire.Get{Name: "x", Wait: longWait})
	require.ErrorIs(t, own.Reply(4, &wire.GrantReply{}), wire.CodeLimit)
}

// If two requests had the same number, the client could not tell which request a reply answers.
func TestANumberThatWaitsIsUsedAgainOnlyByAClientThatBreaksTheProtocol(t *testing.T) {
	_, path := serve(t, Config{})
	for _, second := range []wire.Request{&wire.Get{Name: "x", Wait: longWait}, &wire.Open{Name: "x"}, &wire.StatsRequest{}, nil} {
		c := greeted(t, path)
		c.Send(5, &wire.Get{Name: "x", Wait: longWait})
		if second != nil {
			c.Send(5, second)
		} else {
			require.NoError(t, c.Conn.Send([]byte("\x82\xa1o\xa4warp\xa1q\x05"), nil)) // an unknown operation
		}
		packets := c.CutOff()
		require.Len(t, packets, 1)
		n, err := wire.DecodeNotice(packets[0])
		require.NoError(t, err, "no reply")
		assert.Equal(t, wire.CodeProtocol, n.(*wire.Goodbye).Reason.Code)
	}
}

func TestANumberIsFreeOnceItsReplyCame(t *testing.T) {
	_, path := serve(t, Config{})
	c := greeted(t, path)
	c.Send(5, &wire.Get{Name: "x", Wait: longWait})
	c.Send(0, &wire.Cancel{Request: 5})
	assert.ErrorIs(t, c.Reply(5, &wire.GrantReply{}), wire.CodeCancelled)
	c.Refused(5, &wire.Get{Name: "x"}, wire.CodeNotFound)
}

func TestOnlyTheRequestThatIsNamedIsCancelled(t *testing.T) {
	_, path := serve(t, Config{})
	c := greeted(t, path)
	const last = wire.MaxQuery
	c.Send(last, &wire.Get{Name: "x", Wait: longWait})
	c.Send(6, &wire.Open{Name: "x", Wait: longWait})
	for _, q := range []uint64{0, 5, last + 1, wire.MaxUint} {
		c.Ask(9, &wire.Cancel{Request: q}, &wire.EmptyReply{})
	}
	c.Send(0, &wire.Cancel{Request: 6})
	assert.ErrorIs(t, c.Reply(6, &wire.PoolReply{}), wire.CodeCancelled)
	c.Send(0, &wire.Cancel{Request: last})
	assert.ErrorIs(t, c.Reply(last, &wire.GrantReply{}), wire.CodeCancelled)
}

// A client cancels a request, gets the answer and then uses the request's number again. The request `cancel` for the first request must not
// end the second request.
func TestACancelledRequestDoesNotTakeItsSuccessorAlong(t *testing.T) {
	_, path := serve(t, Config{})
	c := greeted(t, path)
	for range 100 {
		c.Send(5, &wire.Get{Name: "x", Wait: longWait})
		c.Send(0, &wire.Cancel{Request: 5})
		require.ErrorIs(t, c.Reply(5, &wire.GrantReply{}), wire.CodeCancelled)
		c.Send(5, &wire.Get{Name: "x", Wait: longWait})
		c.Ask(6, &wire.StatsRequest{}, &wire.StatsReply{})
		c.Send(0, &wire.Cancel{Request: 5})
		require.ErrorIs(t, c.Reply(5, &wire.GrantReply{}), wire.CodeCancelled)
	}
}

func TestARequestThatWantsNoReplyGetsNoLease(t *testing.T) {
	r := start(t, Config{}, unhurried)
	c := greeted(t, r.path)
	c.Ask(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 1 << 20}, &wire.PoolReply{})
	c.Send(0, &wire.Alloc{Pool: 1, Tensor: wire.Tensor{DType: "uint8"}})
	c.Send(0, &wire.Open{Name: "nothing", Wait: longWait})
	var st wire.StatsReply
	c.Ask(3, &wire.StatsRequest{}, &st)
	assert.Zero(t, st.Stats.Leases)
}

func TestACancelledGetGivesBackWhatItIsGrantedMeanwhile(t *testing.T) {
	r := start(t, Config{}, unhurried)
	c := dial(t, r.path)
	session := r.only(t)
	p := createPool(t, c, hostPool("p", 1<<20))
	why := errors.New("enough")
	for range 50 {
		ctx, cancel := context.WithCancelCause(context.Background())
		ended := make(chan error)
		go func() {
			l, err := c.Get(ctx, "x", bridge.LeaseOptions{})
			if err == nil {
				err = l.Release(false)
			}
			ended <- err
		}()
		awaitWaiting(t, session, 1)
		l := allocate(t, p, 10)
		go cancel(why) // cancel may come before or after publish
		publish(t, l, "x")
		if err := <-ended; err != nil {
			require.ErrorIs(t, err, why)
		}
		require.NoError(t, l.Release(false))
		require.NoError(t, c.Unpublish(context.Background(), "x"))
	}
	for { // the service may still be taking back a lease that no client got
		st, err := c.Stats(context.Background())
		require.NoError(t, err)
		if st.Leases == 0 {
			assert.Zero(t, st.Buffers)
			return
		}
	}
}

func TestRequestsBehindOneThatWaitsForAPoolAreAnswered(t *testing.T) {
	r := start(t, Config{}, unhurried)
	c := greeted(t, r.path)
	p, err := r.svc.OpenSession(mempool.Self(), "", nil)
	require.NoError(t, err)
	pool, err := p.CreatePool(hostPool("p", 4096))
	require.NoError(t, err)
	made := make(chan struct{})
	r.only(t).pool(2, func(ctx context.Context) (*service.Pool, error) {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-made:
			return pool, nil
		}
	})
	c.Ask(3, &wire.StatsRequest{}, &wire.StatsReply{})
	close(made)
	require.NoError(t, c.Reply(2, &wire.PoolReply{}))
}
