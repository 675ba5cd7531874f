package session

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/harness"
)

func TestWaitsThatWereNotInVainCount(t *testing.T) {
	var w Waits
	began := time.Now().Add(-time.Second)
	w.Over(began, true)
	w.Over(began, false)
	count, total := w.Total()
	assert.EqualValues(t, 1, count)
	assert.GreaterOrEqual(t, total, 2*time.Second)
}

func TestTheErrorOfAFrameThatIsLargerThanItsMemoryHasBothSizes(t *testing.T) {
	frame := &shmchannel.Frame{}
	frame.Description, frame.Bytes = &shmchannel.Description{DType: "uint8", Shape: []uint64{100}}, 8
	_, err := (&block{bytes: 4096}).describeLocked(frame)
	require.ErrorIs(t, err, ErrCorruptRecord)
	assert.True(t, strings.HasSuffix(err.Error(), "uint8[100] of 100 bytes in memory of 8"), err.Error())
}

// unread begins a session whose peer reads only what the test reads.
func unread(t *testing.T) (*Session, *seqpacket.Conn) { return begun(t, nil) }

// begun is like unread. With a token, the session outlives its connection.
func begun(t *testing.T, token []byte) (*Session, *seqpacket.Conn) {
	t.Helper()
	conn, peer, err := seqpacket.Pair()
	require.NoError(t, err)
	s := New(conn)
	s.Lost = func() {}
	hello := make(chan error)
	go func() { hello <- s.Hello(context.Background(), "test") }()
	q, _ := request(t, peer)
	packet, err := wire.AppendReply(nil, q, &wire.HelloReply{Version: wire.Version, Session: 1, Token: token})
	require.NoError(t, err)
	require.NoError(t, peer.Send(packet, nil))
	require.NoError(t, <-hello)
	t.Cleanup(func() {
		s.BeginClose()
		assert.NoError(t, peer.Close())
		assert.NoError(t, s.HangUp())
	})
	return s, peer
}

func request(t *testing.T, peer *seqpacket.Conn) (uint32, wire.Request) {
	t.Helper()
	buf := make([]byte, wire.MaxPacket)
	n, fds, err := peer.Recv(buf)
	require.NoError(t, err)
	require.NoError(t, fds.Close())
	q, r, err := wire.DecodeRequest(buf[:n])
	require.NoError(t, err)
	return q, r
}

// reply answers a request of a session.
func reply(t *testing.T, peer *seqpacket.Conn, q uint32, r wire.Reply) {
	t.Helper()
	packet, err := wire.AppendReply(nil, q, r)
	require.NoError(t, err)
	require.NoError(t, peer.Send(packet, nil))
}

// successor makes the end of a service that takes a session over, and gives `next` the session's end.
func successor(t *testing.T, next chan<- *seqpacket.Conn) *seqpacket.Conn {
	t.Helper()
	conn, peer, err := seqpacket.Pair()
	require.NoError(t, err)
	next <- conn
	return peer
}

func TestASessionThatDoesNotBeginHasNoSuccessor(t *testing.T) {
	conn, peer, err := seqpacket.Pair()
	require.NoError(t, err)
	s := New(conn)
	s.Lost = func() {}
	s.Redial = func(context.Context) (*seqpacket.Conn, error) {
		t.Error("nobody takes it up again")
		return nil, context.Canceled
	}
	begun := make(chan error)
	go func() { begun <- s.Hello(t.Context(), "test") }()
	q, _ := request(t, peer)
	reply(t, peer, q, &wire.HelloReply{Version: wire.Version + 1, Session: 7, Token: make([]byte, 16)})
	assert.ErrorIs(t, <-begun, convert.ErrVersion)
	assert.NoError(t, peer.Close())
}

func TestASessionGoesOnThoughItsServiceDiesRightAfterHello(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that the answer to hello and the death are found together
	conn, peer, err := seqpacket.Pair()
	require.NoError(t, err)
	s := New(conn)
	s.Lost = func() {}
	successors := make(chan *seqpacket.Conn, 1)
	s.Redial = func(ctx context.Context) (*seqpacket.Conn, error) {
		select {
		case conn := <-successors:
			return conn, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	next := successor(t, successors)
	begun := make(chan error)
	go func() { begun <- s.Hello(t.Context(), "test") }()
	q, _ := request(t, peer)
	welcome := &wire.HelloReply{Version: wire.Version, Session: 7, Token: make([]byte, 16)}
	reply(t, peer, q, welcome)
	require.NoError(t, peer.Close())
	require.NoError(t, <-begun)

	q, r := request(t, next)
	require.EqualValues(t, 7, r.(*wire.Hello).Resume)
	reply(t, next, q, welcome)

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Call(ctx, &wire.Get{Name: "nothing"}, &wire.GrantReply{}) }()
	waiting, _ := request(t, next)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	_, r = request(t, next)
	require.Equal(t, &wire.Cancel{Request: uint64(waiting)}, r)
	require.NoError(t, s.Send(&wire.Seal{}))
	request(t, next)

	last := successor(t, successors)
	require.NoError(t, next.Close())
	q, _ = request(t, last)
	reply(t, last, q, &wire.HelloReply{Version: wire.Version, Session: 7, Token: make([]byte, 16), Done: 3})
	again, _ := request(t, last)
	require.Equal(t, waiting, again)
	_, r = request(t, last)
	require.Equal(t, &wire.Cancel{Request: uint64(waiting)}, r, "the cancelled call is cancelled again, which the dead service had done")

	assert.True(t, s.BeginClose())
	assert.NoError(t, s.HangUp())
	require.NoError(t, last.Close())
}

func TestACallThatCannotBeSentEndsWithItsContext(t *testing.T) {
	s, peer := unread(t)
	filler, err := wire.AppendRequest(nil, 0, &wire.Seal{})
	require.NoError(t, err)
	fillers := 0
	for ; err == nil; fillers++ {
		err = s.Conn().TrySend(filler, nil)
	}
	require.ErrorIs(t, err, seqpacket.ErrWouldBlock)

	const calls = 3 // one waits for room, the others wait for that one
	began, ended := s.Requests(), make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	for range calls {
		go func() { ended <- s.Call(ctx, &wire.StatsRequest{}, &wire.StatsReply{}) }()
	}
	harness.Eventually(t, func() bool { return s.Requests() == began+calls })
	cancel()
	for range calls {
		require.ErrorIs(t, <-ended, context.Canceled)
	}

	for range fillers - 1 {
		_, r := request(t, peer)
		require.IsType(t, &wire.Seal{}, r)
	}
	go func() { ended <- s.Call(t.Context(), &wire.Unpublish{Name: "x"}, &wire.EmptyReply{}) }()
	q, r := request(t, peer)
	require.Equal(t, &wire.Unpublish{Name: "x"}, r, "a call that was not sent leaves nothing behind")
	packet, err := wire.AppendReply(nil, q, &wire.EmptyReply{})
	require.NoError(t, err)
	require.NoError(t, peer.Send(packet, nil))
	require.NoError(t, <-ended)
}

func TestCloseWaitsUntilTheServiceIsToldOfABlockThatWasRecalled(t *testing.T) {
	for name, known := range map[string]bool{"mapped": true, "unknown, because the service lost what it was told": false} {
		t.Run(name, func(t *testing.T) {
			s, peer := unread(t)
			if known {
				s.Blocks.lockAndApply()
				s.Blocks.blocks[5] = new(block)
				s.Blocks.mu.Unlock()
			}
			s.sending <- struct{}{} // another goroutine sends
			packet, err := wire.AppendNotice(nil, &wire.Recall{Blocks: []uint64{5}})
			require.NoError(t, err)
			require.NoError(t, peer.Send(packet, nil))
			require.Eventually(t, func() bool {
				stacks := make([]byte, 1<<20)
				return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "(*Blocks).dropped")
			}, time.Minute, time.Millisecond)
			var sent atomic.Bool
			time.AfterFunc(10*time.Millisecond, func() {
				sent.Store(true)
				<-s.sending
			})
			require.NoError(t, s.Blocks.Close())
			assert.True(t, sent.Load())
			_, m := request(t, peer)
			assert.Equal(t, &wire.Dropped{Blocks: []uint64{5}}, m)
		})
	}
}

func TestANoticeThatABufferHasFailedMayComeBeforeItsLeaseIsInTheList(t *testing.T) {
	s, _ := unread(t)
	b := &s.Blocks
	b.MarkFailed([]uint64{5, 6})
	require.Nil(t, b.Find(1), "somebody applies what has come")
	l := &Lease{info: &mempool.Grant{Buffer: 5}}
	b.lockAndApply()
	b.addLocked(l)
	b.mu.Unlock()
	assert.True(t, b.hasFailed(l))
	b.lockAndApply()
	defer b.mu.Unlock()
	b.leases.remove(l)
	assert.Len(t, b.failed, 1)
}

func TestACallEndsInTimeWhileADriverHoldsTheBlocks(t *testing.T) {
	s, peer := unread(t)
	s.Blocks.lockAndApply() // a driver works
	ctx, cancel := context.WithCancel(t.Context())
	_, ended := get(ctx, t, s, peer)
	packet, err := wire.AppendNotice(nil, &wire.Failed{Buffers: []uint64{5}})
	require.NoError(t, err)
	require.NoError(t, peer.Send(packet, nil))
	require.Eventually(t, s.Blocks.some.Load, time.Minute, time.Millisecond)
	cancel()
	assert.ErrorIs(t, <-ended, context.Canceled)

	l := &Lease{buffer: 5}
	s.Blocks.leases.last = l
	s.Blocks.mu.Unlock()
	assert.True(t, s.Blocks.hasFailed(l))
	s.Blocks.leases.last = nil
}

// get asks for a name in a goroutine, and returns the number of the request when the peer has it.
func get(ctx context.Context, t *testing.T, s *Session, peer *seqpacket.Conn) (q uint32, ended chan error) {
	t.Helper()
	ended = make(chan error, 1)
	go func() { ended <- s.Call(ctx, &wire.Get{Name: "name"}, &wire.GrantReply{}) }()
	q, r := request(t, peer)
	require.IsType(t, &wire.Get{}, r)
	return q, ended
}

func TestWhoeverReadsPassesOnTheRepliesOfOthers(t *testing.T) {
	s, peer := unread(t)
	ctx, cancel := context.WithCancel(t.Context())
	first, firstEnded := get(ctx, t, s, peer)
	second, secondEnded := get(t.Context(), t, s, peer)
	third, thirdEnded := get(t.Context(), t, s, peer)
	reply(t, peer, second, &wire.GrantReply{})
	require.NoError(t, <-secondEnded)
	cancel() // of the caller that reads
	require.ErrorIs(t, <-firstEnded, context.Canceled)
	_, r := request(t, peer)
	assert.EqualValues(t, first, r.(*wire.Cancel).Request)
	reply(t, peer, third, &wire.GrantReply{})
	require.NoError(t, <-thirdEnded)
	fourth, fourthEnded := get(t.Context(), t, s, peer)
	reply(t, peer, fourth, &wire.GrantReply{})
	require.NoError(t, <-fourthEnded)
	reply(t, peer, first, &wire.GrantReply{}) // so that closing does not wait for it
}

func TestACallerThatReadsEndsWhenItsSessionIsClosed(t *testing.T) {
	s, peer := unread(t)
	q, ended := get(t.Context(), t, s, peer)
	go s.BeginClose()
	require.ErrorIs(t, <-ended, ErrClientClosed)
	reply(t, peer, q, &wire.GrantReply{})
}

func TestNonsenseThatACallerReadsEndsTheSession(t *testing.T) {
	s, peer := unread(t)
	_, ended := get(t.Context(), t, s, peer)
	require.NoError(t, peer.Send([]byte{0xc1}, nil))
	require.ErrorIs(t, <-ended, ErrDisconnected)
	<-s.Done()
}

func TestAnErrorThatOneCallerReadsIsNotReplacedByTheEndThatTheNextOneReads(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that the next caller is often before the receiving goroutine
	for range 10 {
		s, peer := begun(t, make([]byte, 16))
		s.Redial = func(context.Context) (*seqpacket.Conn, error) {
			t.Error("a service that breaks the protocol lives, and is not looked for")
			s.hang()
			return nil, context.Canceled
		}
		_, ended := get(t.Context(), t, s, peer)
		for len(s.reading) == 0 {
			runtime.Gosched()
		}
		reply(t, peer, 999, &wire.GrantReply{}) // nobody has asked this
		for len(s.reading) != 0 && s.Over() == nil {
			runtime.Gosched()
		}
		_ = s.Call(t.Context(), &wire.Get{Name: "b"}, &wire.GrantReply{})
		require.ErrorIs(t, <-ended, convert.ErrProtocol)
		<-s.Done()
	}
}
