package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/mempool"
)

// poolSlack is the number of extra bytes in a check's pool. A pool needs these bytes because it rounds blocks up to
// size classes.
const poolSlack = 32 << 20

// unmapLimit is how long quiet waits until all processes have unmapped destroyed memory.
const unmapLimit = 20 * time.Second

// longestPause is the longest pause between two reads of the service's pools.
const longestPause = 50 * time.Millisecond

// pool makes a pool for buffers that have `bytes` bytes in total. The function `undo` destroys the pool and everything that is published in
// the pool.
func (s *scene) pool(ctx context.Context, name string, bytes uint64) (p *bridge.Pool, undo func() error, err error) {
	p, err = s.client.CreatePool(ctx, mempool.PoolSpec{Name: name, Kind: s.kind, Device: s.device(), MaxBytes: bytes/8*9 + poolSlack})
	if err != nil {
		return nil, nil, err
	}
	return p, func() error {
		s.mu.Lock()
		s.leaving = append(s.leaving, p)
		s.mu.Unlock()
		return p.Destroy(s.ctx)
	}, nil
}

// quiet waits until the service has freed the memory of earlier checks. The service frees a block when no process maps the block any more.
// This process may be the last process that maps the block, and it may unmap the block after the check has ended. The driver calls that
// unmap and free memory wait for running kernels. During this wait, other driver calls of the same process may wait too. So a check calls
// the method `quiet` before it holds a kernel.
func (s *stage) quiet(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, unmapLimit)
	defer cancel()
	for pause := time.Millisecond; len(s.leaving) > 0; pause = min(2*pause, longestPause) {
		st, err := s.client.Stats(ctx)
		if err != nil {
			return s.notBack(err)
		}
		s.leaving = slices.DeleteFunc(s.leaving, func(p *bridge.Pool) bool {
			return !slices.ContainsFunc(st.Pools, func(there mempool.PoolStats) bool { return there.Pool.ID == p.Info().ID })
		})
		if len(s.leaving) == 0 {
			break
		}
		select {
		case <-time.After(pause): // the service does not report when a pool is gone
		case <-ctx.Done():
			return s.notBack(ctx.Err())
		}
	}
	return nil
}

func (s *stage) notBack(err error) error {
	return fmt.Errorf("the memory of pool %q, which an earlier check destroyed, did not go back to the driver: %w", s.leaving[0].Info().Name, err)
}

// put publishes a buffer of n elements that contain a pattern.
func (s *scene) put(ctx context.Context, pool *bridge.Pool, name string, n uint64, p *work.Pattern) error {
	l, err := pool.TryAllocate(ctx, mempool.Tensor{DType: p.DType(), Shape: []uint64{n}})
	if err != nil {
		return err
	}
	if err = s.bench.Fill(ctx, l, n, p); err == nil {
		err = l.Publish(ctx, mempool.Publication{Name: name})
	}
	return errors.Join(err, l.Release(err != nil))
}

// publish makes a pool and publishes one buffer in it.
func (s *scene) publish(ctx context.Context, name string, n uint64, p *work.Pattern) (undo func() error, err error) {
	pool, undo, err := s.pool(ctx, name, n*work.ElementBytes)
	if err != nil {
		return nil, err
	}
	if err := s.put(ctx, pool, name, n, p); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// look compares the content of the named buffer with the pattern p. If `then` is not nil, the method `look` also writes the pattern `then`
// into the buffer, after the comparison.
func (s *scene) look(ctx context.Context, name string, n uint64, p, then *work.Pattern) error {
	l, err := s.client.Get(ctx, name, bridge.LeaseOptions{Write: then != nil})
	if err != nil {
		return fmt.Errorf("after the worker: %w", err)
	}
	r, err := s.bench.Verify(ctx, l, n, p)
	if err == nil {
		err = r.Err()
	}
	if err == nil && then != nil {
		err = s.bench.Fill(ctx, l, n, then)
	}
	return errors.Join(err, l.Release(false))
}
