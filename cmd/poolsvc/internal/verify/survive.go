package verify

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/child"
)

// serviceKilled kills a service that has a guard. Go keeps a lease meanwhile. What Go and a worker have written before, both find afterwards, and
// the worker produces another buffer.
func serviceKilled(ctx context.Context, s *scene) (err error) {
	served, err := child.Serve(ctx, s.options.Self, filepath.Join(s.dir, fmt.Sprintf("guarded %d", s.names.Add(1)), "poolsvc.sock"), "--guard")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, served.Stop()) }()
	of := &stage{ctx: s.ctx, options: s.options, socket: served.Socket, dir: s.dir, idle: make(map[string][]*worker)}
	if of.client, err = served.Dial(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, of.close(), of.client.Close()) }()
	on := &scene{stage: of, kind: s.kind, consumer: s.consumer}
	defer on.end()
	w, err := on.worker()
	if err != nil {
		return err
	}
	first, second := s.options.written(megabyte), s.options.answered(megabyte)
	return on.pool(ctx, 3*first.bytes(), func(pool *bridge.Pool) (err error) {
		name, later := on.uniqueName("buffer"), on.uniqueName("later")
		if err := on.put(ctx, pool, name, first); err != nil {
			return err
		}
		if err := w.do(ctx, check{name, first, second}, nil); err != nil {
			return err
		}
		held, err := on.gpus.allocate(ctx, pool.TryAllocate, first)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, held.Release(false)) }()
		if err := served.KillGuarded(); err != nil {
			return err
		}
		for _, step := range []func() error{
			func() error { return w.do(ctx, check{name, second, first}, nil) },
			func() error { return on.compareBuffer(ctx, name, first, nil) },
			func() error {
				m, err := memoryOf(ctx, held)
				return errors.Join(err, on.gpus.compare(m, first, nil))
			},
			func() error { return w.do(ctx, produce{pool.Info().Name, later, second}, nil) },
			func() error { return on.compareBuffer(ctx, later, second, nil) },
		} {
			if err := step(); err != nil {
				return fmt.Errorf("after the service was killed: %w", err)
			}
		}
		st, err := on.client.Stats(ctx)
		if err == nil && st.Takeovers != 1 {
			err = fmt.Errorf("after the service was killed, %d others took over, not one", st.Takeovers)
		}
		return err
	})
}
