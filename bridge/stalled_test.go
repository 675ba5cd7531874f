package bridge

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// stall fills the client's end with notices, so that the answer to each of n requests has to wait. It tells how many those are.
func (r *raw) stall(server *serverConn, n int) (filled int) {
	r.Helper()
	packet, err := wire.AppendNotice(nil, &wire.Recall{Blocks: []uint64{99}})
	require.NoError(r, err)
	for ; err == nil; filled++ {
		err = server.conn.TrySend(packet, nil)
	}
	require.ErrorIs(r, err, seqpacket.ErrWouldBlock)
	for range n {
		r.send(7, &wire.StatsRequest{})
	}
	return filled - 1
}

// awaitStall returns when the server waits with a packet in its hands.
func awaitStall(server *serverConn) {
	for held := 0; held < 1000; runtime.Gosched() {
		if server.sending.TryLock() {
			server.sending.Unlock()
			held = 0
		} else {
			held++
		}
	}
}

func TestAClientThatNeverReadsIsCutOffAndTheOthersGoOn(t *testing.T) {
	l := unhurried
	l.send = 20 * time.Millisecond
	r := start(t, ServerConfig{}, l)
	stalled := greeted(t, r.path)
	server := r.only(t)
	c := dial(t, r.path)
	p := createPool(t, c, hostPool("p", 1<<20))
	stalled.ask(2, &wire.Open{Name: "p"}, &wire.PoolReply{})
	stalled.ask(3, &wire.Alloc{Pool: 1, Tensor: wire.Tensor{DType: "uint8"}}, &wire.LeaseReply{})
	stalled.stall(server, 1)
	for range 10 {
		require.NoError(t, allocate(t, p, 100).Release(false))
	}
	r.log.await(t, "i/o timeout")
	r.log.await(t, "kind=session-ended")
	st, err := c.Stats(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []int{1, 0}, []int{st.Sessions, st.Leases})
	stalled.cutOff()
}

func TestNoticesThatPileUpEndTheSessionThatReadsNone(t *testing.T) {
	l := unhurried
	l.notices = 4
	l.send = patience
	r := start(t, ServerConfig{}, l)
	stalled := greeted(t, r.path)
	server := r.only(t)
	c := dial(t, r.path)
	for i := uint64(0); server.ctx.Err() == nil; i++ {
		server.notify(service.Recall{Blocks: []uint64{i}}) // never waits
	}
	r.log.await(t, "4 notices wait for a client that reads none")
	_, err := c.Stats(t.Context())
	require.NoError(t, err)
	assert.NotEmpty(t, stalled.cutOff())
}

// A client that was slow once is not held to the time limit of that packet for ever.
func TestAClientThatCaughtUpIsNotCutOff(t *testing.T) {
	l := unhurried
	for l.send = 20 * time.Millisecond; ; l.send *= 2 { // until the client catches up in time
		r := start(t, ServerConfig{}, l)
		c := greeted(t, r.path)
		c.stall(r.only(t), 1)
		awaitStall(r.only(t))
		if c.reply(7, &wire.StatsReply{}) != nil {
			continue
		}
		<-time.After(l.send)
		c.ask(8, &wire.StatsRequest{}, &wire.StatsReply{})
		return
	}
}

func TestClosingTheServerDoesNotWaitForAStalledClient(t *testing.T) {
	l := unhurried
	l.send = patience
	r := start(t, ServerConfig{}, l)
	greeted(t, r.path).stall(r.only(t), 10)
	awaitStall(r.only(t))
	require.NoError(t, r.Close())
	require.NoError(t, r.Close(), "again")
}

func TestAnAnswerTooLongForAPacketIsAnErrorAndNoMore(t *testing.T) {
	r := start(t, ServerConfig{}, unhurried)
	c := dial(t, r.path)
	name := fmt.Sprintf("%0250d", 0)
	for i := range 400 {
		createPool(t, c, hostPool(fmt.Sprintf("%s%d", name, i), 4096))
	}
	_, err := c.Stats(t.Context())
	assert.ErrorIs(t, err, ErrLimit)
	_, err = c.OpenPool(t.Context(), name+"7", 0)
	assert.NoError(t, err)
}
