package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool/service"
)

func manySockets(files []*os.File) error {
	return fmt.Errorf("systemd passed %d sockets: expected one ListenSequentialPacket= in the socket unit", len(files))
}

// listen starts the server on the socket that systemd passed. If systemd passed no socket, listen makes a socket at the path `socket`.
func listen(files []*os.File, socket string, p *plan, l life, svc *service.Service, serving server.Config) (*server.Server, error) {
	switch {
	case len(files) == 0:
		return server.Listen(socket, svc, serving)
	case len(files) > 1:
		return nil, manySockets(files)
	case l.private:
		return nil, fmt.Errorf("systemd passed a socket, and --private makes another: drop one of them")
	}
	srv, err := server.ListenFile(files[0], svc, serving)
	if err == nil && p.from["socket"] != (place{name: "default"}) && srv.Path() != p.socket {
		serving.Log.Warn("the service uses the socket that systemd passed, not that of the configuration", "socket", srv.Path(),
			"configured", p.socket, "from", p.from["socket"].String())
	}
	return srv, err
}

// systemd notifies systemd, if systemd started the service and set NOTIFY_SOCKET. It does not wait for systemd.
type systemd struct{ relay *relay }

func newSystemd(log *slog.Logger) systemd {
	return systemd{(&relay{to: notifySocket{}, most: 64 << 10, impaired: func(err error) {
		log.Warn("the service cannot notify systemd (NOTIFY_SOCKET)", "error", err)
	}}).start()}
}

func (s systemd) tell(said ...string) { _, _ = s.relay.Write([]byte(strings.Join(said, "\n"))) }

// notifySocket is the socket of NOTIFY_SOCKET. Write blocks while systemd does not read.
type notifySocket struct{}

func (notifySocket) Write(said []byte) (int, error) {
	_, err := daemon.SdNotify(false, string(said))
	return len(said), err
}

// startWatchdog starts a goroutine that notifies systemd's watchdog as long as the service answers. If systemd has no watchdog for this
// process, startWatchdog does nothing.
func startWatchdog(ctx context.Context, log *slog.Logger, to systemd, ready func(context.Context) error) error {
	period, err := daemon.SdWatchdogEnabled(false)
	if err != nil || period == 0 {
		return err
	}
	ticker := time.NewTicker(period / 3)
	go func() {
		defer ticker.Stop()
		watch(ctx, log, to, ticker.C, period/3, ready)
	}()
	return nil
}

// At each tick, watch checks whether the service answers within the time `patience`. If the service answers, watch notifies systemd's
// watchdog.
func watch(ctx context.Context, log *slog.Logger, to systemd, ticks <-chan time.Time, patience time.Duration, ready func(context.Context) error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
		asking, cancel := context.WithTimeout(ctx, patience)
		err := ready(asking)
		cancel()
		switch {
		case err == nil:
			to.tell(daemon.SdNotifyWatchdog)
		case ctx.Err() == nil:
			log.Error("the service does not answer, and systemd's watchdog will end it if it continues", "error", err)
		}
	}
}
