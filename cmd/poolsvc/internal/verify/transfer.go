package verify

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// producedName is the name of checks in which the consumer writes first.
const producedName = "produced"

// manyName returns the name of the check in which several workers use one buffer at the same time.
func (o Options) manyName() string { return fmt.Sprintf("%d-workers", o.Workers) }

// check compares a buffer with a pattern, and then writes another pattern, if there is one. In Python, it also makes sure that the
// library's array is no copy.
type check struct {
	Name   string   `json:"name"`
	Expect *Pattern `json:"expect"`
	Then   *Pattern `json:"then"`
}

func (t check) do(ctx context.Context, w *Worker) (any, error) {
	return nil, w.using(ctx, t.Name, t.Then != nil, func(l *bridge.Lease, m memory) error {
		if err := t.Expect.describedBy(l.Tensor()); err != nil {
			return err
		}
		return w.gpus.compare(m, t.Expect, t.Then)
	})
}

// produce allocates a buffer, writes a pattern and publishes the buffer.
type produce struct {
	Pool    string   `json:"pool"`
	Name    string   `json:"name"`
	Content *Pattern `json:"content"`
}

func (t produce) do(ctx context.Context, w *Worker) (any, error) {
	l, err := w.allocate(ctx, t.Pool, t.Content)
	if err != nil {
		return nil, err
	}
	err = l.Publish(ctx, mempool.Publication{Name: t.Name, Keep: true})
	return nil, errors.Join(err, l.Release(err != nil))
}

// both uses one lease with both processors: the GPU writes and the CPU compares, then the CPU writes and the GPU compares.
type both struct {
	Name   string   `json:"name"`
	First  *Pattern `json:"first"`
	Second *Pattern `json:"second"`
}

func (t both) do(ctx context.Context, w *Worker) (any, error) {
	return nil, w.using(ctx, t.Name, true, func(_ *bridge.Lease, onCPU memory) error {
		if onCPU.cpu == nil {
			return errors.New("the CPU cannot access the memory")
		}
		g, onGPU := &w.gpus, memory{ptr: onCPU.ptr, elements: onCPU.elements}
		if err := g.fill(onGPU, t.First); err != nil {
			return err
		}
		if err := g.compare(onCPU, t.First, t.Second); err != nil {
			return err
		}
		return g.compare(onGPU, t.Second, nil)
	})
}

// roundTrip lets a worker in another process compare what Go wrote, through a zero-copy array, and write its own pattern. Then Go compares
// that.
func roundTrip(ctx context.Context, s *scene) error { return roundTripOf(ctx, s, s.options.Elements) }

func large(ctx context.Context, s *scene) error { return roundTripOf(ctx, s, s.options.LargeBytes/4) }

func roundTripOf(ctx context.Context, s *scene, n uint64) error {
	first, second := s.options.written(n), s.options.answered(n)
	return s.published(ctx, first, func(name string) error {
		if err := s.tell(ctx, check{name, first, second}); err != nil {
			return err
		}
		return s.compareBuffer(ctx, name, second, nil)
	})
}

// produced lets a worker allocate a buffer, write a pattern and publish the buffer. Go compares the buffer and writes another pattern. Then
// the worker compares that.
func produced(ctx context.Context, s *scene) error {
	first, second := s.options.written(s.options.Elements), s.options.answered(s.options.Elements)
	return s.pool(ctx, first.bytes(), func(pool *bridge.Pool) error {
		w, err := s.worker()
		if err != nil {
			return err
		}
		name := s.uniqueName("produced")
		if err := w.do(ctx, produce{pool.Info().Name, name, first}, nil); err != nil {
			return err
		}
		if err := s.compareBuffer(ctx, name, first, second); err != nil {
			return err
		}
		return w.do(ctx, check{name, second, nil}, nil)
	})
}

// namedArrays lets a worker in Go and the consumer produce buffers of several arrays. The other one finds the arrays by the name, compares
// them and writes another pattern, which the producer compares.
func namedArrays(ctx context.Context, s *scene) error {
	first, second := s.options.written(megabyte).inHalves(), s.options.answered(megabyte).inHalves()
	return s.pool(ctx, 2*first.bytes(), func(pool *bridge.Pool) error {
		inGo, err := s.hire(goConsumer)
		if err != nil {
			return err
		}
		other, err := s.worker()
		if err != nil {
			return err
		}
		for _, w := range [][2]*worker{{inGo, other}, {other, inGo}} {
			name := s.uniqueName("arrays")
			if err := w[0].do(ctx, produce{pool.Info().Name, name, first}, nil); err != nil {
				return err
			}
			if err := w[1].do(ctx, check{name, first, second}, nil); err != nil {
				return err
			}
			if err := w[0].do(ctx, check{name, second, nil}, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// cpuAndGPU lets a worker use the memory of one lease with the CPU and with the GPU.
func cpuAndGPU(ctx context.Context, s *scene) error {
	n := s.options.Elements
	return s.published(ctx, affine(n, 0, 0), func(name string) error {
		if err := s.tell(ctx, both{name, s.options.written(n), s.options.answered(n)}); err != nil {
			return err
		}
		return s.compareBuffer(ctx, name, s.options.answered(n), nil)
	})
}

// manyWorkers lets several workers, each in its own process, compare one buffer at the same time.
func manyWorkers(ctx context.Context, s *scene) error {
	p := s.options.written(s.options.Elements)
	return s.published(ctx, p, func(name string) error {
		g, ctx := errgroup.WithContext(ctx)
		for range s.options.Workers {
			w, err := s.worker()
			if err != nil {
				return errors.Join(err, g.Wait())
			}
			g.Go(func() error { return w.do(ctx, check{name, p, nil}, nil) })
		}
		return g.Wait()
	})
}
