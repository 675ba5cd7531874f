package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// listen serves on the socket that systemd handed over, else on one of the service's own.
func listen(socket string, p *plan, l life, svc *service.Service, serving bridge.ServerConfig) (*bridge.Server, error) {
	files := activation.Files(true)
	switch {
	case len(files) == 0:
		return bridge.Listen(socket, svc, serving)
	case len(files) > 1:
		return nil, fmt.Errorf("systemd handed over %d sockets: expected one ListenSequentialPacket= in the socket unit", len(files))
	case l.private:
		return nil, fmt.Errorf("systemd handed over a socket, and --private wants another: drop one of them")
	}
	server, err := bridge.ListenFile(files[0], svc, serving)
	if err == nil && p.from["socket"] != (place{name: "default"}) && server.Path() != p.socket {
		serving.Log.Warn("systemd handed over a socket, which is used instead of that of the configuration", "socket", server.Path(),
			"configured", p.socket, "from", p.from["socket"].String())
	}
	return server, err
}

// tell tells systemd what is so, if it started the service and wants to know.
func tell(log *slog.Logger, said ...string) {
	if _, err := daemon.SdNotify(false, strings.Join(said, "\n")); err != nil {
		log.Warn("systemd does not hear from the service (NOTIFY_SOCKET)", "said", said[0], "error", err)
	}
}

// startWatchdog tells systemd's watchdog that the service answers, for as long as it does. Without a watchdog it does nothing.
func startWatchdog(ctx context.Context, log *slog.Logger, ready func(context.Context) error) error {
	period, err := daemon.SdWatchdogEnabled(false)
	if err != nil || period == 0 {
		return err
	}
	ticker := time.NewTicker(period / 3)
	go func() {
		defer ticker.Stop()
		watch(ctx, log, ticker.C, period/3, ready)
	}()
	return nil
}

// watch asks at each tick whether the service answers in time, and tells systemd's watchdog if it does.
func watch(ctx context.Context, log *slog.Logger, ticks <-chan time.Time, patience time.Duration, ready func(context.Context) error) {
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
			tell(log, daemon.SdNotifyWatchdog)
		case ctx.Err() == nil:
			log.Error("the service does not answer, and systemd's watchdog will end it if that lasts", "error", err)
		}
	}
}
