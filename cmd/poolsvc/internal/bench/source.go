package bench

import (
	"context"
	"errors"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// patience is how long anything may take that should be there at once.
const patience = time.Minute

// buffer is a lease of a Go program, whichever way it got it.
type buffer interface {
	Bytes() ([]byte, error)
	CopyFrom(off uint64, src []byte) error
	Publish(context.Context, mempool.Publication) error
	Release(incomplete bool) error
	Info() mempool.LeaseInfo
}

// source is where a Go program gets buffers.
type source interface {
	// makePool makes the pool that buffers come from.
	makePool(context.Context, mempool.PoolSpec) error
	destroyPool(context.Context) error
	makeChannel(context.Context, mempool.ChannelSpec) (outlet, error)
	allocate(context.Context, mempool.Tensor) (buffer, error)
	unpublish(context.Context, string) error
	socket() string
	close() error
}

// outlet is the end of a channel that frames go into.
type outlet interface {
	publish(context.Context, buffer) error
	shut(context.Context) error
}

// inside is a service in this process.
type inside struct {
	svc     *mempool.Service
	server  *bridge.Server
	session *mempool.Session
	pool    uint64
	path    string
}

// startInside starts a service in this process.
func startInside(path string) (_ *inside, err error) {
	s := &inside{svc: mempool.NewService(mempool.Config{}), path: path}
	if s.server, err = bridge.Listen(path, s.svc, bridge.ServerConfig{}); err != nil {
		s.svc.Close()
		return nil, err
	}
	if s.session, err = s.svc.OpenSession(mempool.Self(), nil); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *inside) makePool(_ context.Context, spec mempool.PoolSpec) error {
	p, err := s.session.CreatePool(spec)
	if err == nil {
		s.pool = p.Info().ID
	}
	return err
}

func (s *inside) destroyPool(context.Context) error { return s.session.DestroyPool(s.pool) }

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

func (s *inside) makeChannel(_ context.Context, spec mempool.ChannelSpec) (outlet, error) {
	spec.Pool, spec.ThroughService = s.pool, true // a session in the service's process has no other channels
	ch, err := s.session.CreateChannel(spec)
	return insideOutlet{ch}, err
}

// insideOutlet is a channel in the service's own process.
type insideOutlet struct{ *mempool.Channel }

func (o insideOutlet) publish(ctx context.Context, b buffer) error {
	_, err := o.Publish(ctx, b.(insideBuffer).Lease, mempool.FrameOptions{Wait: patience})
	return err
}

func (o insideOutlet) shut(context.Context) error { return o.Shut() }

// insideBuffer is a lease of the service's own process.
type insideBuffer struct{ *mempool.Lease }

// synchronize waits for the work on the buffer's memory.
func (b insideBuffer) synchronize() error {
	mem, err := b.Memory()
	if err != nil {
		return err
	}
	return mem.Synchronize()
}

func (b insideBuffer) Publish(_ context.Context, p mempool.Publication) error {
	return b.Lease.Publish(p)
}

// outside is a client of a service in another process.
type outside struct {
	client *bridge.Client
	pool   *bridge.Pool
	path   string
}

// dialOutside connects to a service.
func dialOutside(ctx context.Context, path string) (*outside, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := bridge.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	return &outside{client: c, path: path}, nil
}

func (s *outside) makePool(ctx context.Context, spec mempool.PoolSpec) (err error) {
	s.pool, err = s.client.CreatePool(ctx, spec)
	return err
}

// openPool opens the pool that another client made.
func (s *outside) openPool(ctx context.Context) (err error) {
	s.pool, err = s.client.OpenPool(ctx, poolName, patience)
	return err
}

func (s *outside) destroyPool(ctx context.Context) error { return s.pool.Destroy(ctx) }

func (s *outside) socket() string { return s.path }

func (s *outside) allocate(ctx context.Context, t mempool.Tensor) (buffer, error) {
	return s.pool.Allocate(ctx, t, patience)
}

func (s *outside) unpublish(ctx context.Context, name string) error {
	return s.client.Unpublish(ctx, name)
}

func (s *outside) close() error { return s.client.Close() }

func (s *outside) makeChannel(ctx context.Context, spec mempool.ChannelSpec) (outlet, error) {
	spec.Pool = s.pool.Info().ID
	ch, err := s.client.CreateChannel(ctx, spec)
	return outsideOutlet{ch}, err
}

// outsideOutlet is a channel of a service in another process.
type outsideOutlet struct{ *bridge.Channel }

func (o outsideOutlet) publish(ctx context.Context, b buffer) error {
	_, err := o.Publish(ctx, b.(*bridge.Lease), mempool.FrameOptions{Wait: patience})
	return err
}

func (o outsideOutlet) shut(ctx context.Context) error { return o.Shut(ctx) }
