package bridge

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

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
	require.NoError(t, unix.Close(fd)) // nobody listens, the file stays

	server, err := Listen(path, svc, ServerConfig{})
	require.NoError(t, err)
	_, err = Listen(path, svc, ServerConfig{})
	assert.ErrorIs(t, err, seqpacket.ErrInUse)
	c := dial(t, path)
	_, err = c.Stats(t.Context())
	require.NoError(t, err)
	require.NoError(t, server.Close())
	assert.NoFileExists(t, path)
}

func TestClosingTheServerTellsThoseWhoWait(t *testing.T) {
	r := start(t, ServerConfig{}, unhurried)
	c := dial(t, r.path)
	p := createPool(t, c, hostPool("p", 4096))
	l := allocate(t, p, 4096)
	ctx := context.Background()
	waits := []func() error{
		func() error { _, err := c.Get(ctx, "x", LeaseOptions{Wait: patience}); return err },
		func() error { _, err := c.OpenPool(ctx, "q", patience); return err },
		func() error { _, err := p.Allocate(ctx, mempool.Bytes(1), patience); return err },
	}
	ended := make(chan error)
	for _, wait := range waits {
		go func() { ended <- wait() }()
	}
	awaitWaiting(t, r.only(t), len(waits))
	require.NoError(t, r.Close())
	for range waits {
		err := <-ended
		assert.ErrorIs(t, err, ErrDisconnected)
		assert.ErrorContains(t, err, "the service is shutting down")
	}
	<-c.Done()
	for _, err := range []error{l.Release(false), func() error { _, err := c.Stats(ctx); return err }()} {
		assert.ErrorIs(t, err, ErrDisconnected)
		assert.ErrorContains(t, err, "the service is shutting down")
	}
	_, err := Dial(ctx, r.path)
	assert.ErrorIs(t, err, ErrNotRunning)
}

// awaitWaiting returns when n requests of the session wait.
func awaitWaiting(t *testing.T, c *serverConn, n int) {
	t.Helper()
	for {
		c.mu.Lock()
		waiting := len(c.waiting)
		c.mu.Unlock()
		if waiting == n {
			return
		}
		require.NoError(t, t.Context().Err())
	}
}

func TestTheEndOfTheServiceIsATypedErrorForWhoeverAsks(t *testing.T) {
	r := start(t, ServerConfig{}, unhurried)
	c := dial(t, r.path)
	createPool(t, c, hostPool("p", 4096))
	ended := make(chan error)
	go func() {
		_, err := c.Get(context.Background(), "x", LeaseOptions{Wait: patience})
		ended <- err
	}()
	awaitWaiting(t, r.only(t), 1)
	r.svc.Close() // before the server
	assert.ErrorIs(t, <-ended, ErrClosed)
	_, err := c.OpenPool(t.Context(), "p", 0)
	assert.ErrorIs(t, err, ErrClosed)
	_, err = Dial(t.Context(), r.path)
	assert.ErrorIs(t, err, ErrClosed)
}

func TestMoreSessionsThanAllowedAreToldSo(t *testing.T) {
	_, path := serve(t, ServerConfig{MaxSessions: 1})
	dial(t, path)
	_, err := Dial(t.Context(), path)
	require.ErrorIs(t, err, ErrDisconnected)
	require.ErrorIs(t, err, ErrLimit)
	assert.ErrorContains(t, err, "--limit sessions=N")
}

func TestAServerThatIsClosedIsNotWell(t *testing.T) {
	r := start(t, ServerConfig{}, unhurried)
	require.NoError(t, r.Check())
	require.NoError(t, r.Close())
	require.Error(t, r.Check())
}

func TestLimitsOfARunningServerCanBeChanged(t *testing.T) {
	r := start(t, ServerConfig{MaxSessions: 1}, unhurried)
	first, err := Dial(t.Context(), r.path)
	require.NoError(t, err)
	defer first.Close()
	_, err = Dial(t.Context(), r.path)
	require.ErrorIs(t, err, ErrLimit)
	require.NoError(t, r.SetLimits(2, 0))
	second, err := Dial(t.Context(), r.path)
	require.NoError(t, err)
	defer second.Close()
	require.NoError(t, r.SetLimits(1, 0))
	_, err = second.Stats(t.Context())
	require.NoError(t, err, "what is there stays")
	_, err = Dial(t.Context(), r.path)
	require.ErrorIs(t, err, ErrLimit)
}

func TestAServerThatClosesWhileClientsConnectWaitsForNobody(t *testing.T) {
	for range 20 {
		r := start(t, ServerConfig{}, unhurried)
		for range 5 {
			c := dialRaw(t, r.path) // says nothing, and would have 10 s for it
			if packet, err := wire.AppendRequest(nil, 1, &wire.Hello{Versions: []uint64{1}}); err == nil {
				_ = c.conn.TrySend(packet, nil)
			}
			dialRaw(t, r.path)
		}
		require.NoError(t, r.Close())
	}
}

func TestNoServiceSaysWhereItLookedAndWhatToDo(t *testing.T) {
	dir := openDir(t)
	path := filepath.Join(dir, "s")
	_, err := Dial(t.Context(), path)
	require.ErrorIs(t, err, ErrNotRunning)
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, err, "no service is running: nothing listens on "+path+"; start it with `poolsvc serve`, or set POOLBRIDGE_SOCKET")

	why := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 1, why)
	defer cancel()
	<-ctx.Done()
	_, err = Dial(ctx, path)
	assert.ErrorIs(t, err, why)
}

func TestAPatientClientWaitsForTheServiceToStart(t *testing.T) {
	path := filepath.Join(openDir(t), "s")
	connected := make(chan error)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() {
		c, err := Dial(ctx, path)
		if err == nil {
			err = c.Close()
		}
		connected <- err
	}()
	svc := service.New(service.Config{})
	defer svc.Close()
	server, err := Listen(path, svc, ServerConfig{})
	require.NoError(t, err)
	assert.NoError(t, <-connected)
	require.NoError(t, server.Close())
}

func TestTheDefaultSocketIsOnesOwn(t *testing.T) {
	t.Setenv("POOLBRIDGE_SOCKET", "/somewhere/s")
	assert.Equal(t, "/somewhere/s", DefaultSocket())
	t.Setenv("POOLBRIDGE_SOCKET", "")
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
	assert.Equal(t, "/run/user/7/poolbridge/poolsvc.sock", DefaultSocket())
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", "/tmp")
	assert.Regexp(t, `^/tmp/poolbridge-\d+/poolsvc\.sock$`, DefaultSocket())
}

func TestAClientThatLeavesSomethingUnreadHasLeftAllTheSame(t *testing.T) {
	r := start(t, ServerConfig{}, unhurried)
	c := greeted(t, r.path)
	c.send(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 4096})
	eventually(t, func() bool { // the answer is there
		p := []unix.PollFd{{Events: unix.POLLIN}}
		raw, err := c.conn.SyscallConn()
		require.NoError(t, err)
		require.NoError(t, raw.Control(func(fd uintptr) {
			p[0].Fd = int32(fd)
			_, err = unix.Poll(p, 0)
		}))
		require.NoError(t, err)
		return p[0].Revents&unix.POLLIN != 0
	})
	require.NoError(t, c.conn.Close())
	r.log.await(t, "kind=session-ended")
	r.log.await(t, "the connection broke off") // which is no error
}

func TestEndedSessionsOfALivingProcessAreNoWayAroundTheLimit(t *testing.T) {
	r := start(t, ServerConfig{MaxSessions: 8}, unhurried)
	c := dial(t, r.path)
	createPool(t, c, hostPool("p", 1<<20))
	before := openFDs(t)
	for range 7 {
		raw, _ := streaming(t, r.path)
		raw.ask(4, &wire.Alloc{Pool: 1, Tensor: bytesTensor(10)}, &wire.LeaseReply{})
		require.NoError(t, raw.conn.Close()) // and may go on writing, for all that anybody knows
	}
	// Of each the end of its process is watched; its connection and its timeline go.
	eventually(t, func() bool { return r.svc.Stats().Sessions == 1 && openFDs(t) <= before+7 })
	_, err := Dial(t.Context(), r.path)
	require.ErrorIs(t, err, ErrLimit)
	assert.ErrorContains(t, err, "the limit sessions is 8")
}
