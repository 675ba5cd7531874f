package verify

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/child"
	"github.com/poolbridge/poolbridge/mempool"
)

// death ends a service that has a guard.
type death func(ctx context.Context, of *stage, served *child.Service) error

func serviceKilled(_ context.Context, _ *stage, served *child.Service) error {
	return served.KillGuarded()
}

func upgraded(ctx context.Context, of *stage, _ *child.Service) error {
	said, err := exec.CommandContext(ctx, of.options.Self, "upgrade", "--socket", of.socket).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, said)
	}
	return nil
}

// guardKilled kills the guard, and lets the next guard end the service.
func guardKilled(ctx context.Context, of *stage, served *child.Service) error {
	err := syscall.Kill(served.PID(), syscall.SIGKILL)
	for served.Guard = served.PID(); err == nil && served.Guard == served.PID(); {
		var st mempool.ServiceStats
		st, err = of.client.Stats(ctx)
		served.Guard = int(st.GuardPID)
	}
	return errors.Join(err, upgraded(ctx, of, served))
}

// survived lets the service end. Go keeps a lease meanwhile. What Go and a worker have written before, both find afterwards, and the worker
// produces another buffer.
func (end death) survived(ctx context.Context, s *scene) (err error) {
	served, err := child.Serve(ctx, s.options.Self, filepath.Join(s.dir, fmt.Sprintf("guarded %d", s.names.Add(1)), "poolsvc.sock"), "--guard", "--end-unused", "1m")
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
		if err := end(ctx, of, served); err != nil {
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
				return fmt.Errorf("after the end of the service: %w", err)
			}
		}
		st, err := on.client.Stats(ctx)
		if err == nil && st.Takeovers != 1 {
			err = fmt.Errorf("after the end of the service, %d others took over, not one", st.Takeovers)
		}
		return err
	})
}
