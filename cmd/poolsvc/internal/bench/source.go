package bench

import (
	"context"
	"errors"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// patience is how long anything may take that should be there at once.
const patience = 30 * time.Second

// buffer is a lease of a Go program, whichever way it got it.
type buffer interface {
	Bytes() ([]byte, error)
	CopyFrom(off uint64, src []byte) error
	Publish(context.Context, mempool.Publication) error
	Release(incomplete bool) error
}

// source is where a Go program gets buffers.
type source interface {
	allocate(context.Context, mempool.Tensor) (buffer, error)
	unpublish(context.Context, string) error
	socket() string
	close() error
}

// inside is a service in this process.
type inside struct {
	svc     *mempool.Service
	server  *bridge.Server
	session *mempool.Session
	pool    uint64
	path    string
}

// startInside starts a service in this process, with a pool.
func startInside(path string, spec mempool.PoolSpec) (_ *inside, err error) {
	s := &inside{svc: mempool.NewService(mempool.Config{}), path: path}
	if s.server, err = bridge.Listen(path, s.svc, bridge.ServerConfig{}); err != nil {
		s.svc.Close()
		return nil, err
	}
	var pool *mempool.Pool
	if s.session, err = s.svc.OpenSession(mempool.Self(), nil); err == nil {
		pool, err = s.session.CreatePool(spec)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.pool = pool.Info().ID
	return s, nil
}

func (s *inside) socket() string { return s.path }

func (s *inside) allocate(ctx context.Context, t mempool.Tensor) (buffer, error) {
	l, err := s.session.Allocate(ctx, s.pool, t, patience)
	if err != nil {
		return nil, err
	}
	return insideBuffer{l}, nil
}

func (s *inside) unpublish(_ context.Context, name string) error { return s.session.Unpublish(name) }

func (s *inside) close() error {
	err := s.server.Close()
	s.svc.Close()
	return err
}

// insideBuffer is a lease of the service's own process.
type insideBuffer struct{ *mempool.Lease }

func (b insideBuffer) Publish(_ context.Context, p mempool.Publication) error {
	return b.Lease.Publish(p)
}

// outside is a client of a service in another process.
type outside struct {
	client *bridge.Client
	pool   *bridge.Pool
	path   string
}

// dialOutside connects to a service and makes the pool, if there is a spec for it.
func dialOutside(ctx context.Context, path string, spec *mempool.PoolSpec) (*outside, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := bridge.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	s := &outside{client: c, path: path}
	if spec != nil {
		s.pool, err = c.CreatePool(ctx, *spec)
	} else {
		s.pool, err = c.OpenPool(ctx, poolName, 0)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return s, nil
}

func (s *outside) socket() string { return s.path }

func (s *outside) allocate(ctx context.Context, t mempool.Tensor) (buffer, error) {
	return s.pool.Allocate(ctx, t, patience)
}

func (s *outside) unpublish(ctx context.Context, name string) error {
	return s.client.Unpublish(ctx, name)
}

func (s *outside) close() error { return s.client.Close() }
