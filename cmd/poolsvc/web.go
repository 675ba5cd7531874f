package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/metrics"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// web is what --http and the flags beside it ask for.
type web struct {
	address         string
	remote, profile bool
	server          *metrics.Server // nil: nothing is served
}

func (w *web) flags(c *cobra.Command) {
	c.Flags().StringVar(&w.address, "http", "", "serve /metrics for Prometheus, /healthz and /readyz at HOST:PORT, or at unix:PATH for this user alone")
	c.Flags().BoolVar(&w.remote, "http-allow-remote", false, "let --http be an address that other machines can reach")
	c.Flags().BoolVar(&w.profile, "pprof", false, "serve profiles of the service's own at /debug/pprof/ too")
}

// serve begins to serve, and has the server of the bridge count its requests.
func (w web) serve(svc *service.Service, serving *bridge.ServerConfig) (web, error) {
	if w.address == "" {
		if w.remote || w.profile {
			return w, errors.New("--http-allow-remote and --pprof say more of --http, which is missing: add --http 127.0.0.1:9377, for example")
		}
		return w, nil
	}
	registry := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "poolbridge_build_info", Help: "1, labelled with the version of the service.",
		ConstLabels: prometheus.Labels{"version": version}})
	build.Set(1)
	registry.MustRegister(metrics.Collector{Source: svc}, build, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	serving.Answered = metrics.NewRequests(registry).Answered
	var err error
	w.server, err = metrics.Serve(metrics.Config{Address: w.address, AllowRemote: w.remote, Profile: w.profile, Log: serving.Log}, registry,
		aliveOf(svc))
	if err == nil {
		serving.Log.Info("serving metrics", "address", w.server.Addr())
	}
	return w, err
}

func (w web) close(log *slog.Logger) {
	if w.server == nil {
		return
	}
	if err := w.server.Close(); err != nil {
		log.Warn("the server of metrics could not be closed", "error", err)
	}
}

// aliveOf says whether a service answers before the context ends. One look at a time is under way, however many ask.
func aliveOf(svc *service.Service) func(context.Context) error {
	looking := make(chan struct{}, 1)
	return func(ctx context.Context) error {
		select {
		case looking <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			svc.Stats()
			<-looking
		}()
		select {
		case <-answered:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
