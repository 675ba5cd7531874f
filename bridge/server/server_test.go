package server

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

func TestTheSocketOfADeadServiceIsTakenOverAndALiveOnesIsNot(t *testing.T) {
	svc := service.New(service.Config{})
	defer svc.Close()
	path := filepath.Join(openDir(t), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	require.NoError(t, unix.Close(fd)) // nobody listens any more, but the socket file stays

	server, err := Listen(path, svc, Config{})
	require.NoError(t, err)
	_, err = Listen(path, svc, Config{})
	assert.ErrorIs(t, err, seqpacket.ErrInUse)
	c := dial(t, path)
	_, err = c.Stats(t.Context())
	require.NoError(t, err)
	require.NoError(t, server.Close())
	assert.NoFileExists(t, path)
}

func TestClosingTheServerAnswersRequestsThatWait(t *testing.T) {
	r := start(t, Config{}, unhurried)
	c := dial(t, r.path)
	p := createPool(t, c, hostPool("p", 4096))
	l := allocate(t, p, 4096)
	ctx := context.Background()
	waits := []func() error{
		func() error { _, err := c.Get(ctx, "x", bridge.LeaseOptions{}); return err },
		func() error { _, err := c.OpenPool(ctx, "q"); return err },
		func() error { _, err := p.Allocate(ctx, mempool.Bytes(1)); return err },
	}
	ended := make(chan error)
	for _, wait := range waits {
		go func() { ended <- wait() }()
	}
	awaitWaiting(t, r.only(t), len(waits))
	require.NoError(t, r.Close())
	for range waits {
		err := <-ended
		assert.ErrorIs(t, err, bridge.ErrDisconnected)
		assert.ErrorContains(t, err, "the service is shutting down")
	}
	<-c.Done()
	for _, err := range []error{l.Release(false), func() error { _, err := c.Stats(ctx); return err }()} {
		assert.ErrorIs(t, err, bridge.ErrDisconnected)
		assert.ErrorContains(t, err, "the service is shutting down")
	}
	_, err := bridge.Dial(ctx, r.path)
	assert.ErrorIs(t, err, bridge.ErrNotRunning)
}

// awaitWaiting returns when n requests of the session wait.
func awaitWaiting(t *testing.T, c *connection, n int) {
	t.Helper()
	for {
		c.waits.mu.Lock()
		waiting := len(c.waits.cancels)
		c.waits.mu.Unlock()
		if waiting == n {
			return
		}
		require.NoError(t, t.Context().Err())
	}
}

func TestTheEndOfTheServiceIsATypedErrorForEveryRequest(t *testing.T) {
	r := start(t, Config{}, unhurried)
	c := dial(t, r.path)
	createPool(t, c, hostPool("p", 4096))
	ended := make(chan error)
	go func() {
		_, err := c.Get(context.Background(), "x", bridge.LeaseOptions{})
		ended <- err
	}()
	awaitWaiting(t, r.only(t), 1)
	r.svc.Close() // close the service before the server
	assert.ErrorIs(t, <-ended, bridge.ErrClosed)
	_, err := c.TryOpenPool(t.Context(), "p")
	assert.ErrorIs(t, err, bridge.ErrClosed)
	_, err = bridge.Dial(t.Context(), r.path)
	assert.ErrorIs(t, err, bridge.ErrClosed)
}

func TestMoreSessionsThanAllowedAreToldSo(t *testing.T) {
	_, path := serve(t, Config{MaxSessions: 1})
	dial(t, path)
	_, err := bridge.Dial(t.Context(), path)
	require.ErrorIs(t, err, bridge.ErrDisconnected)
	require.ErrorIs(t, err, bridge.ErrLimit)
	assert.ErrorContains(t, err, "--limit sessions=N")
}

func TestCheckFailsOnceTheServerIsClosed(t *testing.T) {
	r := start(t, Config{}, unhurried)
	require.NoError(t, r.Check())
	require.NoError(t, r.Close())
	require.Error(t, r.Check())
}

func TestLimitsOfARunningServerCanBeChanged(t *testing.T) {
	r := start(t, Config{MaxSessions: 1}, unhurried)
	first, err := bridge.Dial(t.Context(), r.path)
	require.NoError(t, err)
	defer first.Close()
	_, err = bridge.Dial(t.Context(), r.path)
	require.ErrorIs(t, err, bridge.ErrLimit)
	require.NoError(t, r.SetLimits(2, 0))
	second, err := bridge.Dial(t.Context(), r.path)
	require.NoError(t, err)
	defer second.Close()
	require.NoError(t, r.SetLimits(1, 0))
	_, err = second.Stats(t.Context())
	require.NoError(t, err, "a lower limit ends no session")
	_, err = bridge.Dial(t.Context(), r.path)
	require.ErrorIs(t, err, bridge.ErrLimit)
}

func TestAServerThatClosesWhileClientsConnectDoesNotWaitForThem(t *testing.T) {
	for range 20 {
		r := start(t, Config{}, unhurried)
		for range 5 {
			c := dialRaw(t, r.path) // this client sends no hello; the limit for hello is an hour
			if packet, err := wire.AppendRequest(nil, 1, &wire.Hello{Versions: []uint64{1}}); err == nil {
				_ = c.Conn.TrySend(packet, nil)
			}
			dialRaw(t, r.path)
		}
		require.NoError(t, r.Close())
	}
}

func TestAClientMayLeaveWithAnAnswerUnread(t *testing.T) {
	r := start(t, Config{}, unhurried)
	c := greeted(t, r.path)
	c.Send(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 4096})
	eventually(t, func() bool { // wait until the answer has come
		p := []unix.PollFd{{Events: unix.POLLIN}}
		raw, err := c.Conn.SyscallConn()
		require.NoError(t, err)
		require.NoError(t, raw.Control(func(fd uintptr) {
			p[0].Fd = int32(fd)
			_, err = unix.Poll(p, 0)
		}))
		require.NoError(t, err)
		return p[0].Revents&unix.POLLIN != 0
	})
	require.NoError(t, c.Conn.Close())
	r.log.Await(t, "kind=session-ended")
	r.log.Await(t, "the connection broke off") // an answer that the client did not read is not an error
}

func TestEndedSessionsOfALivingProcessCountTowardsTheLimit(t *testing.T) {
	r := start(t, Config{MaxSessions: 8}, unhurried)
	c := dial(t, r.path)
	createPool(t, c, hostPool("p", 1<<20))
	before := openFDs(t)
	for range 7 {
		raw, _ := streaming(t, r.path)
		raw.Ask(4, &wire.Alloc{Pool: 1, Tensor: bytesTensor(10)}, &wire.GrantReply{})
		require.NoError(t, raw.Conn.Close()) // the process lives, so it may still write to the memory
	}
	// For each of the 7 ended sessions, the server keeps one descriptor, with which it watches the client's process. The server has closed the
	// descriptors of the session's connection and timeline.
	eventually(t, func() bool { return r.svc.Stats().Sessions == 1 && openFDs(t) <= before+7 })
	_, err := bridge.Dial(t.Context(), r.path)
	require.ErrorIs(t, err, bridge.ErrLimit)
	assert.ErrorContains(t, err, "the limit sessions is 8")
}
