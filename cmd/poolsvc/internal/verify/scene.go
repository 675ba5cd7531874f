package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

const (
	// poolSlack is the number of extra bytes in a check's pool. A pool needs these bytes because it rounds blocks up to size classes.
	poolSlack = 32 << 20
	// unmapLimit is how long quiet waits until all processes have unmapped destroyed memory.
	unmapLimit = 20 * time.Second
	// longestPause is the longest pause between two reads of the service's pools.
	longestPause = 50 * time.Millisecond
)

// stage has what all checks share: the session of this process with the service, and workers. The service is a separate process.
type stage struct {
	ctx     context.Context // context of the whole run
	options Options
	client  *bridge.Client
	socket  string
	dir     string // folder for files
	gpus    gpus
	names   atomic.Int64 // number of names that uniqueName has made

	mu      sync.Mutex
	idle    map[string][]*worker // workers that no check uses, by their library
	leaving []*bridge.Pool       // destroyed pools of finished checks; their memory may still be mapped
}

// scene is the stage, with the data of one running check.
type scene struct {
	*stage
	kind     mempool.Kind
	consumer string // the library of the check
	note     string // a remark of the check
	hired    []*worker
}

// uniqueName returns a name for a pool, buffer, channel or file that no other check uses.
func (s *scene) uniqueName(what string) string {
	return fmt.Sprintf("verify %s %s %d", s.kind, what, s.names.Add(1))
}

// device returns the GPU to use, or "" for memory on the CPU.
func (s *scene) device() string {
	if !onGPU(s.kind) {
		return ""
	}
	return s.options.Device
}

// uuid returns the UUID of the GPU to use.
func (s *scene) uuid() (string, error) {
	d, err := mempool.FindDevice(s.options.Device)
	if err != nil {
		return "", err
	}
	u, err := d.UUID()
	return u.String(), err
}

// worker returns a worker for the library of the check.
func (s *scene) worker() (*worker, error) { return s.hire(s.consumer) }

// hire returns a worker for a library, which no other check uses before this check has ended. Later checks use the worker again.
func (s *scene) hire(consumer string) (w *worker, err error) {
	s.mu.Lock()
	if idle := s.idle[consumer]; len(idle) > 0 {
		w, s.idle[consumer] = idle[len(idle)-1], idle[:len(idle)-1]
	}
	s.mu.Unlock()
	if w == nil {
		if w, err = s.start(consumer, nil); err != nil {
			return nil, err
		}
	}
	s.hired = append(s.hired, w)
	return w, nil
}

// end makes the workers of this check idle.
func (s *scene) end() {
	for _, w := range s.hired {
		s.dismiss(w)
	}
}

// dismiss makes a worker idle, unless it has ended.
func (s *stage) dismiss(w *worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !w.Gone() {
		s.idle[w.consumer] = append(s.idle[w.consumer], w)
	}
}

// alone calls f with a new worker, which ends afterwards.
func (s *scene) alone(env []string, f func(*worker) error, args ...string) error {
	w, err := s.start(s.consumer, env, args...)
	if err != nil {
		return err
	}
	if err := f(w); err != nil {
		w.Kill()
		return err
	}
	return w.Stop()
}

// close ends all workers, and gives up the GPUs.
func (s *stage) close() (err error) {
	for _, workers := range s.idle {
		for _, w := range workers {
			w.CloseInput() // all workers end at the same time
		}
	}
	for _, workers := range s.idle {
		for _, w := range workers {
			err = errors.Join(err, w.Stop())
		}
	}
	return errors.Join(err, s.gpus.close())
}

// pool calls f with a new pool for buffers that have `bytes` bytes in total. Afterwards it destroys the pool and everything in it.
func (s *scene) pool(ctx context.Context, bytes uint64, f func(*bridge.Pool) error) error {
	return s.poolNamed(ctx, s.uniqueName("pool"), bytes, f)
}

func (s *scene) poolNamed(ctx context.Context, name string, bytes uint64, f func(*bridge.Pool) error) error {
	p, err := s.client.CreatePool(ctx, mempool.PoolSpec{Name: name, Kind: s.kind, Device: s.device(), MaxBytes: bytes/8*9 + poolSlack})
	if err != nil {
		return err
	}
	err = f(p)
	s.mu.Lock()
	s.leaving = append(s.leaving, p)
	s.mu.Unlock()
	return errors.Join(err, p.Destroy(s.ctx))
}

// put publishes a buffer that contains a pattern.
func (s *scene) put(ctx context.Context, pool *bridge.Pool, name string, p *Pattern) error {
	l, err := s.gpus.allocate(ctx, pool.TryAllocate, p)
	if err != nil {
		return err
	}
	err = l.Publish(ctx, mempool.Publication{Name: name})
	return errors.Join(err, l.Release(err != nil))
}

// published calls f with the name of a buffer that contains a pattern. The buffer is in a pool of its own.
func (s *scene) published(ctx context.Context, p *Pattern, f func(name string) error) error {
	return s.pool(ctx, p.bytes(), func(pool *bridge.Pool) error {
		name := s.uniqueName("buffer")
		if err := s.put(ctx, pool, name, p); err != nil {
			return err
		}
		return f(name)
	})
}

// compareBuffer compares the named buffer with the pattern p. If `then` is not nil, compareBuffer writes it after the comparison.
func (s *scene) compareBuffer(ctx context.Context, name string, p, then *Pattern) error {
	l, err := s.client.Get(ctx, name, bridge.LeaseOptions{Write: then != nil})
	if err != nil {
		return fmt.Errorf("after the worker: %w", err)
	}
	m, err := memoryOf(ctx, l)
	if err == nil {
		err = s.gpus.compare(m, p, then)
	}
	return errors.Join(err, l.Release(false))
}

// quiet waits until the service has freed the memory of earlier checks. The service frees a block when no process maps it any more, and
// this process may unmap it after the check has ended. The driver calls that unmap and free memory wait for running kernels, and other
// driver calls of the same process may wait with them. So a check calls quiet before it holds a kernel.
func (s *stage) quiet(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, unmapLimit)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, longestPause) {
		st, err := s.client.Stats(ctx)
		if err == nil {
			s.leaving = slices.DeleteFunc(s.leaving, func(p *bridge.Pool) bool {
				return !slices.ContainsFunc(st.Pools, func(there mempool.PoolStats) bool { return there.Pool.ID == p.Info().ID })
			})
			if len(s.leaving) == 0 {
				return nil
			}
			select {
			case <-time.After(pause): // the service does not report when a pool is gone
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		return fmt.Errorf("the memory of earlier checks did not go back to the driver (%d pools): %w", len(s.leaving), err)
	}
}
