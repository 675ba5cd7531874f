package bridge

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool/service"
)

func TestNoServiceSaysWhereItLookedAndWhatToDo(t *testing.T) {
	dir := openDir(t)
	path := filepath.Join(dir, "s")
	_, err := Dial(t.Context(), path)
	require.ErrorIs(t, err, ErrNotRunning)
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, err, "no service is running: nothing listens on "+path+" (no such file or directory); start it with `poolsvc serve`, or set POOLBRIDGE_SOCKET")

	why := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 1, why)
	defer cancel()
	<-ctx.Done()
	_, err = Dialer{Wait: true}.Dial(ctx, path)
	assert.ErrorIs(t, err, why)
}

func TestAPatientClientWaitsForTheServiceToStart(t *testing.T) {
	path := filepath.Join(openDir(t), "s")
	connected := make(chan error)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() {
		c, err := Dialer{Wait: true}.Dial(ctx, path)
		if err == nil {
			err = c.Close()
		}
		connected <- err
	}()
	svc := service.New(service.Config{})
	defer svc.Close()
	srv, err := server.Listen(path, svc, server.Config{})
	require.NoError(t, err)
	assert.NoError(t, <-connected)
	require.NoError(t, srv.Close())
}

func TestAClientGoesToTheNextServiceIfOneDiesBeforeItAnswersHello(t *testing.T) {
	s := imitate(t)
	go func() {
		for range 2 {
			s.accept(t)
			s.request(t)
			assert.NoError(t, s.conn.Close())
		}
		s.accept(t)
		q, _ := s.request(t)
		s.reply(t, q, &wire.HelloReply{Version: 1, Session: 7})
		assert.NoError(t, s.conn.Close())
	}()
	c, err := Dial(t.Context(), s.path)
	require.NoError(t, err)
	assert.EqualValues(t, 7, c.Session())
	assert.NoError(t, c.Close())
}

func TestAClientWithARelativePathGoesOnInAnotherFolder(t *testing.T) {
	s := imitate(t)
	t.Chdir(filepath.Dir(s.path))
	hello := &wire.HelloReply{Version: 1, Session: 7, Token: make([]byte, 16)}
	connected := make(chan *Client)
	go func() {
		c, err := Dial(context.Background(), "s")
		assert.NoError(t, err)
		connected <- c
	}()
	s.accept(t)
	q, _ := s.request(t)
	s.reply(t, q, hello)
	c := <-connected
	t.Chdir("/")
	require.NoError(t, s.conn.Close())
	s.accept(t)
	q, r := s.request(t)
	require.EqualValues(t, 7, r.(*wire.Hello).Resume)
	s.reply(t, q, hello)
	require.NoError(t, s.listener.Close())
	require.NoError(t, s.conn.Close())
	assert.NoError(t, c.Close())
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
