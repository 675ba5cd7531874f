package verify

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/mempool"
)

// producedName is the name of checks in which the consumer writes first.
const producedName = "produced"

// manyName returns the name of the check in which several workers use one buffer at the same time.
func (o Options) manyName() string { return fmt.Sprintf("%d-workers", o.Workers) }

// roundTrips returns checks in which memory goes to a consumer and back, or from a consumer to Go and back.
func roundTrips(kind mempool.Kind, consumers []string, o Options) []check {
	checks := each(transfer, "round-trip", consumers, func(ctx context.Context, s *scene, consumer string) error {
		return roundTrip(ctx, s, consumer, o.Elements)
	})
	checks = append(checks, each(transfer, producedName, consumers, func(ctx context.Context, s *scene, consumer string) error {
		return produced(ctx, s, consumer, o.Elements)
	})...)
	last := preferred(consumers)
	best := last[len(last)-1]
	checks = append(checks, check{scenario: transfer, name: o.manyName(), consumer: best, run: func(ctx context.Context, s *scene) error {
		return manyWorkers(ctx, s, best, o.Elements, o.Workers)
	}})
	if kind == mempool.Pinned {
		checks = append(checks, each(transfer, "cpu-and-gpu", consumers, cpuAndGPU)...)
	}
	if large := o.LargeBytes / work.ElementBytes; kind == mempool.Device && large > 0 {
		checks = append(checks, check{scenario: transfer, name: "large", consumer: best, run: func(ctx context.Context, s *scene) error {
			return roundTrip(ctx, s, best, large)
		}})
	}
	return checks
}

// roundTrip checks the direction from Go to a worker. Go writes a pattern: element i gets the value i + Seed. A worker in another process
// compares the memory through a zero-copy array and writes its own pattern. Then Go checks the worker's pattern.
func roundTrip(ctx context.Context, s *scene, consumer string, n uint64) (err error) {
	name := s.uniqueName("round-trip")
	undo, err := s.publish(ctx, name, n, s.options.written())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	w, err := s.worker(consumer)
	if err != nil {
		return err
	}
	back := s.options.answered()
	_, err = w.check(ctx, work.Task{Name: name, Pattern: s.options.written(), Then: back, Consumer: consumer, Elements: n})
	if err != nil {
		return err
	}
	return s.look(ctx, name, n, back, nil)
}

// produced checks the direction from a worker to Go. A worker allocates a buffer, writes a pattern and publishes the buffer. Go compares
// the buffer with the pattern and writes another pattern. Then the worker checks Go's pattern.
func produced(ctx context.Context, s *scene, consumer string, n uint64) (err error) {
	name := s.uniqueName("produced")
	_, undo, err := s.pool(ctx, name, n*work.ElementBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	w, err := s.worker(consumer)
	if err != nil {
		return err
	}
	back := s.options.answered()
	t := work.Task{Task: "produce", Pool: name, Name: name, Consumer: consumer, Elements: n, Pattern: s.options.written(), Timeout: 60}
	if _, err := w.do(ctx, t); err != nil {
		return err
	}
	if err := s.look(ctx, name, n, s.options.written(), back); err != nil {
		return err
	}
	_, err = w.check(ctx, work.Task{Name: name, Pattern: back, Consumer: consumer, Elements: n})
	return err
}

// cpuAndGPU lets a worker use the memory of one lease with the CPU and with the GPU.
func cpuAndGPU(ctx context.Context, s *scene, consumer string) (err error) {
	name := s.uniqueName("cpu-and-gpu")
	n := s.options.Elements
	undo, err := s.publish(ctx, name, n, work.Affine(0, 0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	w, err := s.worker(consumer)
	if err != nil {
		return err
	}
	back := s.options.answered()
	_, err = w.check(ctx, work.Task{Task: "both", Name: name, Consumer: consumer, Pattern: s.options.written(), Then: back, Elements: n})
	if err != nil {
		return err
	}
	return s.look(ctx, name, n, back, nil)
}

// manyWorkers lets several workers, each in its own process, check one buffer at the same time.
func manyWorkers(ctx context.Context, s *scene, consumer string, n uint64, workers int) (err error) {
	name := s.uniqueName("many-workers")
	undo, err := s.publish(ctx, name, n, s.options.written())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	many := make([]*worker, workers)
	for i := range many {
		if many[i], err = s.engage(fmt.Sprint("worker ", i), crowdOf(consumer), consumer); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	for i, w := range many {
		g.Go(func() error {
			_, err := w.check(ctx, work.Task{Name: name, Pattern: s.options.written(), Consumer: consumer, Elements: n})
			if err != nil {
				return fmt.Errorf("worker %d: %w", i, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// crowdOf returns the common name of the workers that check one buffer at the same time. All Python workers have one name, because each
// of them can use any library.
func crowdOf(consumer string) string {
	if consumer == goConsumer {
		return "many in Go"
	}
	return "many in Python"
}
