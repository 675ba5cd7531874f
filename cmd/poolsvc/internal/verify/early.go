package verify

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// head is how much earlier the consumer begins to wait than the producer begins to work.
const head = 50 * time.Millisecond

// wait waits for the service, a pool, a channel or a named buffer.
type wait struct {
	What    string  `json:"what"`
	Name    string  `json:"name"`
	Timeout float64 `json:"timeout"` // seconds
}

func (t wait) do(ctx context.Context, w *Worker) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(t.Timeout*float64(time.Second)))
	defer cancel()
	c, err := w.connected(ctx)
	if err != nil {
		return nil, err
	}
	switch t.What {
	case "pool":
		_, err = c.OpenPool(ctx, t.Name)
	case "channel":
		_, err = c.OpenChannel(ctx, t.Name)
	case "name":
		var l *bridge.Lease
		if l, err = c.Get(ctx, t.Name, bridge.LeaseOptions{}); err == nil {
			err = l.Release(false)
		}
	}
	return nil, err
}

// tooEarly returns a check in which a worker waits for a pool, a named buffer or a channel. The worker connects before that, so that its
// waits do not include the wait for the service.
func tooEarly(what string) func(context.Context, *scene) error {
	return func(ctx context.Context, s *scene) error {
		w, err := s.worker()
		if err != nil {
			return err
		}
		if err := w.do(ctx, wait{What: "service", Timeout: patience.Seconds()}, nil); err != nil {
			return err
		}
		name, content := s.uniqueName(what), s.options.written(1000)
		return meet(ctx, w, wait{What: what, Name: name}, func(met func() error) error {
			return s.poolNamed(ctx, name, content.bytes(), func(pool *bridge.Pool) (err error) {
				switch what {
				case "name":
					err = s.put(ctx, pool, name, content)
				case "channel":
					_, err = s.client.CreateChannel(ctx, mempool.ChannelSpec{Name: name, Pool: pool.Info().ID, Capacity: ringSlots})
				}
				if err != nil {
					return err
				}
				return met()
			})
		})
	}
}

// meet lets a worker wait twice for something. The first wait must time out. During the second wait, the function `appear` makes what the
// worker waits for, and keeps it until its argument `met` returns.
func meet(ctx context.Context, w *worker, t wait, appear func(met func() error) error) error {
	t.Timeout = head.Seconds()
	switch err := w.do(ctx, t, nil); {
	case err == nil:
		return errors.New("the worker found what was not there")
	case !hasCode(err, "timeout"):
		return fmt.Errorf("waiting in vain should time out: %w", err)
	}
	t.Timeout = patience.Seconds()
	waited := make(chan error, 1)
	go func() { waited <- w.do(ctx, t, nil) }()
	select {
	case err := <-waited:
		return fmt.Errorf("the worker did not wait: %w", err)
	case <-time.After(head):
	}
	met := false
	err := appear(func() error { met = true; return <-waited })
	if !met {
		_ = w.Cmd.Process.Kill() // what it waits for does not come
		err = errors.Join(err, <-waited)
	}
	return err
}

// earlyService starts a worker before the service of the worker starts.
func earlyService(ctx context.Context, s *scene) error {
	socket := filepath.Join(s.dir, "early-"+s.consumer, "poolsvc.sock")
	return s.alone(nil, func(w *worker) error {
		return meet(ctx, w, wait{What: "service"}, func(met func() error) error {
			svc := service.New(service.Config{})
			defer svc.Close()
			srv, err := server.Listen(socket, svc, server.Config{})
			if err != nil {
				return err
			}
			return errors.Join(met(), srv.Close())
		})
	}, "--socket", socket)
}
