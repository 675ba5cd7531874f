package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/poolbridge/poolbridge/mempool"
)

// poolSlack is room in a check's pool beyond its one buffer, in bytes: blocks come in size classes.
const poolSlack = 32 << 20

// publish makes a pool with one buffer of n elements, writes the Go side's pattern into it and publishes it. undo takes
// everything back.
func publish(ctx context.Context, s *scene, name string, n uint64) (undo func() error, err error) {
	spec := mempool.PoolSpec{Name: name, Kind: s.kind, MaxBytes: n*elementBytes*9/8 + poolSlack}
	if s.kind != mempool.Host {
		spec.Device = s.options.Device
	}
	pool, err := s.session.CreatePool(spec)
	if err != nil {
		return nil, err
	}
	undo = func() error { return s.session.DestroyPool(pool.Info().ID) }
	lease, err := s.session.Allocate(ctx, pool.Info().ID, mempool.Tensor{DType: mempool.Float32, Shape: []uint64{n}}, 0)
	if err != nil {
		return nil, errors.Join(err, undo())
	}
	mem, err := lease.Memory()
	if err == nil {
		err = write(mem, n, s.options.written())
	}
	if err == nil {
		err = lease.Publish(mempool.Publication{Name: name})
	}
	if err = errors.Join(err, lease.Release(false)); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// roundTrip is scenario 1: Go writes i + seed, a worker in another process checks it through a zero-copy array and writes
// its own pattern, and Go checks that.
func roundTrip(ctx context.Context, s *scene, consumer string, n uint64) (err error) {
	name := s.uniqueName("round-trip")
	undo, err := publish(ctx, s, name, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	w, err := s.startWorker(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	back := s.options.answered()
	if err := w.check(ctx, checkTask{Name: name, Pattern: s.options.written(), Then: &back, Consumer: consumer, Elements: n}); err != nil {
		return err
	}
	lease, err := s.session.Get(ctx, name, false, time.Minute)
	if err != nil {
		return fmt.Errorf("after the worker: %w", err)
	}
	mem, err := lease.Memory()
	if err == nil {
		err = compare(mem, n, back)
	}
	return errors.Join(err, lease.Release(false))
}

// manyWorkers has several workers check one buffer at once.
func manyWorkers(ctx context.Context, s *scene, consumer string, n uint64, workers int) (err error) {
	name := s.uniqueName("many-workers")
	undo, err := publish(ctx, s, name, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	g, ctx := errgroup.WithContext(ctx)
	for i := range workers {
		g.Go(func() error {
			w, err := s.startWorker(ctx)
			if err != nil {
				return err
			}
			err = w.check(ctx, checkTask{Name: name, Pattern: s.options.written(), Consumer: consumer, Elements: n})
			if err = errors.Join(err, w.stop()); err != nil {
				return fmt.Errorf("worker %d: %w", i, err)
			}
			return nil
		})
	}
	return g.Wait()
}
