package bench

import (
	"context"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// patience is the limit of a wait for something that should happen at once.
const patience = time.Minute

// source is a client that allocates buffers in Go.
type source struct {
	client *bridge.Client
	pool   *bridge.Pool
	socket string
}

// dial connects to the service at socket.
func dial(ctx context.Context, socket string) (*source, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := bridge.Dialer{Wait: true}.Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	return &source{client: c, socket: socket}, nil
}

// makePool makes the pool for the buffers.
func (s *source) makePool(ctx context.Context, spec mempool.PoolSpec) (err error) {
	s.pool, err = s.client.CreatePool(ctx, spec)
	return err
}

func (s *source) makeChannel(ctx context.Context, spec mempool.ChannelSpec) (*bridge.Channel, error) {
	spec.Pool = s.pool.Info().ID
	return s.client.CreateChannel(ctx, spec)
}

// publish publishes a loan.
func publish(ctx context.Context, p *bridge.Publisher, b *bridge.Lease) error {
	_, err := p.Publish(ctx, b, mempool.FrameOptions{})
	return err
}
