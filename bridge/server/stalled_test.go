package server

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// stall fills the client's socket with notices, so that the answers to n requests have to wait. stall returns how many notices the client
// can then read.
func stall(r *raw, server *connection, n int) (filled int) {
	r.Helper()
	packet, err := wire.AppendNotice(nil, &wire.Recall{Blocks: []uint64{99}})
	require.NoError(r, err)
	for ; err == nil; filled++ {
		err = server.conn.TrySend(packet, nil)
	}
	require.ErrorIs(r, err, seqpacket.ErrWouldBlock)
	for range n {
		r.Send(7, &wire.StatsRequest{})
	}
	return filled - 1
}

// awaitStall returns when the server waits for room to send a packet.
func awaitStall(server *connection) {
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
	l.Send = 20 * time.Millisecond
	r := start(t, Config{}, l)
	stalled := greeted(t, r.path)
	server := r.only(t)
	c := dial(t, r.path)
	p := createPool(t, c, hostPool("p", 1<<20))
	stalled.Ask(2, &wire.Open{Name: "p"}, &wire.PoolReply{})
	stalled.Ask(3, &wire.Alloc{Pool: 1, Tensor: wire.Tensor{DType: "uint8"}}, &wire.GrantReply{})
	stall(stalled, server, 1)
	for range 10 {
		require.NoError(t, allocate(t, p, 100).Release(false))
	}
	r.log.Await(t, "i/o timeout")
	r.log.Await(t, "kind=session-ended")
	st, err := c.Stats(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []int{1, 0}, []int{st.Sessions, st.Leases})
	stalled.CutOff()
}

func TestNoticesThatPileUpEndTheSessionThatReadsNone(t *testing.T) {
	l := unhurried
	l.Notices = 4
	l.Send = patience
	r := start(t, Config{}, l)
	stalled := greeted(t, r.path)
	server := r.only(t)
	c := dial(t, r.path)
	for i := uint64(0); server.ctx.Err() == nil; i++ {
		server.notify(service.Recall{Blocks: []uint64{i}}) // notify never waits
	}
	r.log.Await(t, "4 notices wait for a client that reads none")
	_, err := c.Stats(t.Context())
	require.NoError(t, err)
	assert.NotEmpty(t, stalled.CutOff())
}

// If sending a packet has to wait, the server sets a write deadline. This deadline must not make the sending of a later packet fail.
func TestAClientThatCaughtUpIsNotCutOff(t *testing.T) {
	l := unhurried
	for l.Send = 20 * time.Millisecond; ; l.Send *= 2 { // try longer limits until the client catches up in time
		r := start(t, Config{}, l)
		c := greeted(t, r.path)
		stall(c, r.only(t), 1)
		awaitStall(r.only(t))
		if c.Reply(7, &wire.StatsReply{}) != nil {
			continue
		}
		<-time.After(l.Send)
		c.Ask(8, &wire.StatsRequest{}, &wire.StatsReply{})
		return
	}
}

func TestClosingTheServerDoesNotWaitForAStalledClient(t *testing.T) {
	l := unhurried
	l.Send = patience
	r := start(t, Config{}, l)
	stall(greeted(t, r.path), r.only(t), 10)
	awaitStall(r.only(t))
	require.NoError(t, r.Close())
	require.NoError(t, r.Close(), "again")
}

func TestAnAnswerTooLongForAPacketIsAnErrorAndNoMore(t *testing.T) {
	r := start(t, Config{}, unhurried)
	c := dial(t, r.path)
	name := fmt.Sprintf("%0250d", 0)
	for i := range 400 {
		createPool(t, c, hostPool(fmt.Sprintf("%s%d", name, i), 4096))
	}
	_, err := c.Stats(t.Context())
	assert.ErrorIs(t, err, bridge.ErrLimit)
	_, err = c.TryOpenPool(t.Context(), name+"7")
	assert.NoError(t, err)
}
