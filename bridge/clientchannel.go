package bridge

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// Channel is a channel of the service, open in a [Client].
type Channel struct {
	client *Client
	info   mempool.ChannelInfo
	joined atomic.Pointer[producing] // set by the first Publish
}

// CreateChannel makes a channel, or opens an existing one with the same spec. Its frames go through memory that its clients share.
//
// Errors: [ErrInvalid], [ErrExists] if a channel of that name has another spec, [ErrNotFound] and [ErrDenied] for the pool, [ErrLimit],
// [ErrUnsupported] if the service has no channels.
func (c *Client) CreateChannel(ctx context.Context, spec mempool.ChannelSpec) (*Channel, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	return c.channel(ctx, &wire.MakeChannel{Name: spec.Name, Pool: spec.Pool, Mode: string(spec.Mode), Capacity: uint64(spec.Capacity),
		Full: string(spec.Full)})
}

// OpenChannel opens a channel by name. It waits up to wait for the channel to appear.
//
// Errors: [ErrNotFound] (with wait 0) or [ErrTimeout], [ErrDenied], [ErrUnsupported].
func (c *Client) OpenChannel(ctx context.Context, name string, wait time.Duration) (*Channel, error) {
	return c.channel(ctx, &wire.Find{Name: name, Wait: wireWait(wait)})
}

func (c *Client) channel(ctx context.Context, r wire.Request) (*Channel, error) {
	var reply wire.ChannelReply
	if err := c.call(ctx, r, &call{into: &reply}); err != nil {
		return nil, err
	}
	return &Channel{client: c, info: channelOf(reply.Channel)}, nil
}

// Info returns the description of the channel.
func (ch *Channel) Info() mempool.ChannelInfo { return ch.info }

// Publish publishes the buffer of a write lease as a frame and ends the lease. It returns the frame's number. It waits for room, but not
// for work on the memory: a fence makes readers wait for that. If Publish fails, the lease lives on, unless ctx ended first: then the
// lease has ended, and the frame may or may not have been published.
//
// Errors: [ErrTimeout], which names the consumer that is behind, or [ErrLimit] if the channel is full, [ErrInvalid], [ErrReleased],
// [ErrDenied], [ErrClosed].
func (ch *Channel) Publish(ctx context.Context, l *Lease, o mempool.FrameOptions) (uint64, error) {
	if err := o.Validate(); err != nil {
		return 0, err
	}
	if l.client != ch.client {
		return 0, situation.Of(ErrInvalid, "lease %d and the channel belong to different clients", l.Info().ID)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return 0, l.client.hasEnded(l.info)
	}
	return ch.publish(ctx, l, o)
}

// Close closes the channel. Nothing more can be published, and the name is free. Consumers still get the published frames. A waiting
// Publish fails.
//
// Errors: [ErrDenied] if another user made the channel, [ErrClosed] if it is closed already.
func (ch *Channel) Close(ctx context.Context) error {
	return ch.client.call(ctx, &wire.CloseChannel{Channel: ch.info.ID}, &call{into: &wire.EmptyReply{}})
}
