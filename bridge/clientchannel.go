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
	joined atomic.Pointer[producing] // since the first Publish
}

// CreateChannel makes a channel, or opens the one that is just like it. Its frames go through memory that its clients share.
//
// Errors: [ErrInvalid], [ErrExists] if there is one of that name that is not like it, [ErrNotFound] and [ErrDenied] for the
// pool, [ErrLimit], [ErrUnsupported] by services that have no channels.
func (c *Client) CreateChannel(ctx context.Context, spec mempool.ChannelSpec) (*Channel, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	return c.channel(ctx, &wire.MakeChannel{Name: spec.Name, Pool: spec.Pool, Mode: string(spec.Mode), Capacity: uint64(spec.Capacity),
		Full: string(spec.Full)})
}

// OpenChannel opens a channel by name, and waits up to wait for it to appear.
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

// Info describes the channel.
func (ch *Channel) Info() mempool.ChannelInfo { return ch.info }

// Publish puts the buffer of a write lease into the channel and ends the lease. It returns the frame's number. It waits
// for room, but for no work: readers come after it. If it fails the lease lives on, unless ctx ended first: then
// the lease has ended, and the frame may have been sent or not.
//
// Errors: [ErrTimeout], which names who is behind, or [ErrLimit] if the channel is full, [ErrInvalid], [ErrReleased],
// [ErrDenied], [ErrClosed].
func (ch *Channel) Publish(ctx context.Context, l *Lease, o mempool.FrameOptions) (uint64, error) {
	if err := o.Validate(); err != nil {
		return 0, err
	}
	if l.client != ch.client {
		return 0, situation.Of(ErrInvalid, "lease %d is of another client than the channel", l.Info().ID)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return 0, l.client.hasEnded(l.info)
	}
	return ch.publish(ctx, l, o)
}

// Close closes the channel: nothing more can be published, the name is free, and the consumers' frames end after the last. A Publish that
// waits for room fails.
//
// Errors: [ErrDenied] to others than the user who made it, [ErrClosed] if it is closed already.
func (ch *Channel) Close(ctx context.Context) error {
	return ch.client.call(ctx, &wire.CloseChannel{Channel: ch.info.ID}, &call{into: &wire.EmptyReply{}})
}
