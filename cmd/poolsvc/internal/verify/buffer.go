package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/mempool"
)

// poolSlack is room in a check's pool beyond its buffers, in bytes: blocks come in size classes.
const poolSlack = 32 << 20

// giveBackLimit is how long processes may take to unmap what was destroyed.
const giveBackLimit = 20 * time.Second

// pool makes a pool with room for bytes. undo takes it back, with what is published in it.
func (s *scene) pool(name string, bytes uint64) (id uint64, undo func() error, err error) {
	p, err := s.session.CreatePool(mempool.PoolSpec{Name: name, Kind: s.kind, Device: s.device(), MaxBytes: bytes/8*9 + poolSlack})
	if err != nil {
		return 0, nil, err
	}
	id = p.Info().ID
	return id, func() error {
		s.leaving = append(s.leaving, p)
		return s.session.DestroyPool(id)
	}, nil
}

// quiet waits until the driver has the memory of earlier checks back. The service frees a block when the last process has
// unmapped it, which may be after its check; cuMemFree waits for the kernels that run, and other calls of this process may
// wait for cuMemFree.
func (s *stage) quiet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, giveBackLimit)
	defer cancel()
	for len(s.leaving) > 0 {
		p := s.leaving[0]
		select {
		case <-p.Closed():
			s.leaving = s.leaving[1:]
		case <-ctx.Done():
			return fmt.Errorf("the memory of pool %q, which an earlier check destroyed, did not go back to the driver: %w",
				p.Info().Name, ctx.Err())
		}
	}
	return nil
}

// put publishes a buffer of n elements with a pattern.
func (s *scene) put(ctx context.Context, pool uint64, name string, n uint64, p *work.Pattern) error {
	l, err := s.session.Allocate(ctx, pool, mempool.Tensor{DType: p.DType(), Shape: []uint64{n}}, 0)
	if err != nil {
		return err
	}
	if err = s.bench.Fill(l, n, p); err == nil {
		err = l.Publish(mempool.Publication{Name: name})
	}
	return errors.Join(err, l.Release(err != nil))
}

// publish makes a pool with one buffer in it.
func (s *scene) publish(ctx context.Context, name string, n uint64, p *work.Pattern) (undo func() error, err error) {
	id, undo, err := s.pool(name, n*work.ElementBytes)
	if err != nil {
		return nil, err
	}
	if err := s.put(ctx, id, name, n, p); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// look compares what is published under a name with a pattern, and writes another if there is one.
func (s *scene) look(ctx context.Context, name string, n uint64, p, then *work.Pattern) error {
	l, err := s.session.Get(ctx, name, then != nil, time.Minute)
	if err != nil {
		return fmt.Errorf("after the worker: %w", err)
	}
	r, err := s.bench.Verify(l, n, p)
	if err == nil {
		err = r.Err()
	}
	if err == nil && then != nil {
		err = s.bench.Fill(l, n, then)
	}
	return errors.Join(err, l.Release(false))
}
