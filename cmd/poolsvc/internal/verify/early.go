package verify

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// head is how much earlier the consumer begins to wait than the producer begins to work.
const head = 50 * time.Millisecond

// earlyConsumers returns checks in which the consumer comes before the producer.
func earlyConsumers(kind mempool.Kind, consumers []string, _ Options) []check {
	checks := each(early, "pool", preferred(consumers), func(ctx context.Context, s *scene, consumer string) (err error) {
		w, err := s.worker(consumer)
		if err != nil {
			return err
		}
		name := s.uniqueName("pool")
		var undo func() error
		err = tooEarly(ctx, w, work.Task{What: "pool", Name: name}, func() (err error) {
			_, undo, err = s.pool(ctx, name, 1<<20)
			return err
		})
		if undo != nil {
			err = errors.Join(err, undo())
		}
		return err
	})
	checks = append(checks, each(early, "name", preferred(consumers), func(ctx context.Context, s *scene, consumer string) (err error) {
		w, err := s.worker(consumer)
		if err != nil {
			return err
		}
		name := s.uniqueName("name")
		var undo func() error
		err = tooEarly(ctx, w, work.Task{What: "name", Name: name}, func() (err error) {
			undo, err = s.publish(ctx, name, 1000, s.options.written())
			return err
		})
		if undo != nil {
			err = errors.Join(err, undo())
		}
		return err
	})...)
	checks = append(checks, each(early, "channel", preferred(consumers), func(ctx context.Context, s *scene, consumer string) (err error) {
		w, err := s.worker(consumer)
		if err != nil {
			return err
		}
		f := &flow{scene: s}
		var undo func() error
		if f.pool, undo, err = s.pool(ctx, s.uniqueName("channel"), 1<<20); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, undo()) }()
		f.name = s.uniqueName("channel")
		return tooEarly(ctx, w, work.Task{What: "channel", Name: f.name}, func() error { return f.create(ctx, mempool.Broadcast, mempool.Block) })
	})...)
	if kind == mempool.Host {
		checks = append(checks, alone(each(early, "service", preferred(consumers), earlyService),
			func(s *scene, consumer string) (role, error) { return s.laterService(consumer), nil })...)
	}
	return checks
}

// tooEarly lets a worker wait twice for a thing, for example a pool. The first wait must time out, because the thing does not exist. During
// the second wait, the function `appear` makes the thing. The worker connects to the service before the first wait, so that the first wait
// does not include the wait for the service.
func tooEarly(ctx context.Context, w *worker, t work.Task, appear func() error) error {
	if _, err := w.do(ctx, work.Task{Task: "wait", What: "service", Timeout: 60}); err != nil {
		return err
	}
	t.Task, t.Timeout = "wait", head.Seconds()
	if err := inVain(w.do(ctx, t)); err != nil {
		return err
	}
	return inTime(ctx, w, t, appear)
}

// inVain returns an error unless err says that the wait timed out.
func inVain(_ *work.Answer, err error) error {
	failed, ok := errors.AsType[*work.Failure](err)
	switch {
	case err == nil:
		return errors.New("the worker found what was not there")
	case !ok || failed.Code != "timeout":
		return fmt.Errorf("waiting in vain should time out: %w", err)
	}
	return nil
}

// inTime lets a worker wait for a thing. After a short time, while the worker waits, the function `appear` makes the thing.
func inTime(ctx context.Context, w *worker, t work.Task, appear func() error) error {
	t.Timeout = 60
	waited := make(chan error, 1)
	go func() {
		_, err := w.do(ctx, t)
		waited <- err
	}()
	select {
	case err := <-waited:
		return fmt.Errorf("the worker did not wait: %w", err)
	case <-time.After(head):
	}
	if err := appear(); err != nil {
		w.kill()
		return errors.Join(err, <-waited)
	}
	return <-waited
}

// laterService returns the role of a worker whose service does not exist yet.
func (s *scene) laterService(consumer string) role {
	return role{consumer: consumer, flag: "--socket", value: filepath.Join(s.dir, "early-"+consumer, "poolsvc.sock")}
}

// earlyService starts a worker before the service of the worker starts.
func earlyService(ctx context.Context, s *scene, consumer string) (err error) {
	later := s.laterService(consumer)
	w, err := s.fresh(later)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	t := work.Task{Task: "wait", What: "service", Timeout: head.Seconds()}
	if err := inVain(w.do(ctx, t)); err != nil {
		return err
	}
	svc := service.New(service.Config{})
	defer svc.Close()
	var srv *server.Server
	err = inTime(ctx, w, t, func() (err error) {
		srv, err = server.Listen(later.value, svc, server.Config{})
		return err
	})
	if srv != nil {
		err = errors.Join(err, srv.Close())
	}
	return err
}
