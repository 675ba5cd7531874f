package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool/service"
)

func TestTheWatchdogIsToldOnlyWhileTheServiceAnswers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	heard, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer heard.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	ticks, over := make(chan time.Time), make(chan struct{})
	var asked []error
	log := slog.New(slog.DiscardHandler)
	systemd := newSystemd(log)
	answers := []error{errors.New("sick"), context.DeadlineExceeded, nil, errors.New("sick again"), nil}
	go func() {
		defer close(over)
		watch(ctx, log, systemd, ticks, time.Hour, func(context.Context) error {
			answer := answers[len(asked)]
			asked = append(asked, answer)
			return answer
		})
	}()
	for range answers {
		ticks <- time.Time{}
	}
	end()
	<-over
	require.True(t, systemd.relay.close())
	require.Equal(t, answers, asked)
	packet := make([]byte, 64)
	for range 2 {
		n, err := heard.Read(packet)
		require.NoError(t, err)
		assert.Equal(t, "WATCHDOG=1", string(packet[:n]))
	}
	require.NoError(t, heard.SetReadDeadline(time.Now()))
	_, err = heard.Read(packet)
	assert.Error(t, err, "two answers, two messages")
}

func TestAServiceThatHangsDoesNotAnswer(t *testing.T) {
	hang := make(chan struct{})
	ask := bounded(func() error {
		<-hang
		return nil
	})
	ctx, giveUp := context.WithCancel(t.Context())
	giveUp()
	require.ErrorIs(t, ask(ctx), context.Canceled)
	require.ErrorIs(t, ask(ctx), context.Canceled, "the second waits for the first, and not for ever")
	close(hang)
	require.NoError(t, ask(t.Context()))
}

func TestReadyzSaysThatTheServiceListensAndHealthzThatItLives(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "http")
	p := newPlan()
	p.web.address = "unix:" + path
	r := &running{plan: p}
	serving := server.Config{Log: r.newLog(io.Discard)}
	r.svc = service.New(service.Config{})
	defer r.svc.Close()
	web, err := p.web.serve(r.svc, &serving, bounded(r.healthy), bounded(r.ready))
	require.NoError(t, err)
	defer web.close(r.log)
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	defer client.CloseIdleConnections()
	said := func(path string) int {
		response, err := client.Get("http://service" + path)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode
	}
	assert.Equal(t, 503, said("/readyz"), "it does not listen yet")
	assert.Equal(t, 200, said("/healthz"))
	srv, err := server.Listen(filepath.Join(dir, "s"), r.svc, serving)
	require.NoError(t, err)
	r.server.Store(srv)
	assert.Equal(t, 200, said("/readyz"))
	require.NoError(t, os.Remove(srv.Path()))
	require.NoError(t, os.Mkdir(srv.Path(), 0o700))
	assert.Equal(t, 503, said("/readyz"), "nobody can connect to its socket")
	require.NoError(t, r.answers(), "systemd's watchdog does not end it")
	require.NoError(t, srv.Close())
	assert.Equal(t, 503, said("/readyz"), "it listens no more")
	assert.Equal(t, 200, said("/healthz"))
}
