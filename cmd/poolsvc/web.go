package main

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/metrics"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/page"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// web has the settings of the HTTP server.
type web struct {
	address         string
	remote, profile bool
	server          *metrics.Server // nil: the service has no HTTP server
}

// serve starts the HTTP server, if w has an address. It also sets serving.Answered, so that the metrics count the requests that the service
// answers.
func (w web) serve(svc *service.Service, serving *server.Config, healthy, ready func(context.Context) error) (web, error) {
	if w.address == "" {
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
	w.server, err = metrics.Serve(metrics.Config{Address: w.address, AllowRemote: w.remote, Profile: w.profile, Ready: ready,
		OnLost: func(lost, failed error) { svc.Impaired(seqpacket.LossText(lost, failed)) },
		Page:   page.New(svc, version), Log: serving.Log}, registry, healthy)
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

// bounded returns a function that calls the function `ask`. If the context ends while `ask` still runs, the returned function does not wait
// for `ask`. Only one call of `ask` runs at a time: the returned function first waits until an earlier call has ended.
func bounded(ask func() error) func(context.Context) error {
	looking := make(chan struct{}, 1)
	return func(ctx context.Context) error {
		select {
		case looking <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		answer := make(chan error, 1)
		go func() {
			answer <- ask()
			<-looking
		}()
		select {
		case err := <-answer:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
