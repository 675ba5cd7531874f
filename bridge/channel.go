package bridge

import (
	"context"
	"fmt"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/internal/stream"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Channel is a channel of the service, open in a [Client]. Several goroutines may call its methods.
type Channel struct {
	client *Client
	stream *stream.Channel
}

// CreateChannel makes a channel, or opens an existing channel with the same spec. The frames go through memory that the clients of the
// channel share.
//
// Errors: [ErrInvalid], [ErrExists] if a channel of that name has another spec, [ErrNotFound] if the pool does not exist, [ErrDenied] if
// this client may not use the pool, [ErrLimit], [ErrUnsupported] if the service has no channels.
func (c *Client) CreateChannel(ctx context.Context, spec ChannelSpec) (*Channel, error) {
	if spec.Capacity == 0 {
		spec.Capacity = mempool.DefaultCapacity
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	var reply wire.ChannelReply
	r := &wire.MakeChannel{Name: spec.Name, Pool: spec.Pool, Mode: string(spec.Mode), Capacity: uint64(spec.Capacity), Full: string(spec.Full),
		MaxDeliveries: uint64(spec.MaxDeliveries)}
	if err := c.session.Call(ctx, r, &reply); err != nil {
		return nil, err
	}
	return &Channel{client: c, stream: c.streams.Channel(convert.ChannelIdentity(reply.Channel))}, nil
}

// OpenChannel opens a channel by name. It waits until the channel exists. It finds no closed channel: [Client.Subscribe] also finds a closed
// queue that still has frames.
//
// Errors: [ErrNotFound] at the deadline, [ErrDenied], [ErrUnsupported].
func (c *Client) OpenChannel(ctx context.Context, name string) (*Channel, error) {
	return c.findChannel(ctx, name, session.Waiting)
}

// TryOpenChannel is like [Client.OpenChannel], but does not wait for the channel to exist.
//
// Errors: [ErrNotFound], [ErrDenied], [ErrUnsupported].
func (c *Client) TryOpenChannel(ctx context.Context, name string) (*Channel, error) {
	return c.findChannel(ctx, name, session.Once)
}

func (c *Client) findChannel(ctx context.Context, name string, try session.Attempt) (*Channel, error) {
	r := &wire.Find{Name: name}
	var reply wire.ChannelReply
	if err := c.session.Wait(ctx, try, r, &r.Wait, session.Call{Into: &reply}); err != nil {
		return nil, err
	}
	return &Channel{client: c, stream: c.streams.Channel(convert.ChannelIdentity(reply.Channel))}, nil
}

// Identity returns the identity of the channel.
func (ch *Channel) Identity() ChannelIdentity { return ch.stream.Identity }

// String describes the channel for people.
func (ch *Channel) String() string {
	id := ch.Identity()
	return fmt.Sprintf("channel %q: %s of %d frames, policy %s", id.Name, id.Mode, id.Capacity, id.Full)
}

// Publish publishes the buffer of a write lease as a frame and ends the lease. Publish returns the frame's number. It waits for room, but
// not for work on the memory: a fence makes readers wait for that work. If Publish fails, for example at the deadline, the lease stays
// valid, and the caller can publish the buffer again. But if ctx was cancelled, the lease has ended, and the service can reuse the memory
// when the work that o.Completion names has ended.
//
// Errors: [ErrLimit] if the channel is full, at the deadline or, with the policy [Fail], at once; the error says what the channel waits
// for, for example the consumer that has not released a frame. ErrLimit also at the deadline if a consumer that waited for the channel has
// not entered it yet. [ErrInvalid], [ErrReleased], [ErrDenied], [ErrClosed].
func (ch *Channel) Publish(ctx context.Context, l *Lease, o FrameOptions) (uint64, error) {
	return ch.send(ctx, session.Waiting, l, o)
}

// TryPublish is like [Channel.Publish], but does not wait for room or consumers. A client's first call of Publish or TryPublish for a channel
// joins the channel. TryPublish waits for this joining until ctx ends.
//
// Errors: those of Publish; [ErrLimit] with every policy.
func (ch *Channel) TryPublish(ctx context.Context, l *Lease, o FrameOptions) (uint64, error) {
	return ch.send(ctx, session.Once, l, o)
}

func (ch *Channel) send(ctx context.Context, try session.Attempt, l *Lease, o mempool.FrameOptions) (number uint64, err error) {
	if l.client != ch.client {
		return 0, typed.Errorf(ErrInvalid, "lease %d and the channel belong to different clients", l.Grant().ID)
	}
	if stream.IsLoan(&l.held) {
		return 0, typed.Errorf(ErrInvalid, "lease %d is a loan of a publisher: publish it with Publisher.Publish", l.Grant().ID)
	}
	if l.client.tracer != nil {
		var end func(uint64, error)
		ctx, end = l.traceSend(ctx, ch.stream.Identity.Name, &o)
		defer func() { end(number, err) }()
	}
	return ch.stream.Publish(ctx, try, &l.held, o)
}

// WaitForConsumers waits until at least n consumers have joined the channel. They get every frame that is published afterwards.
//
// Errors: [ErrNotFound] at the deadline, with the number of consumers; [ErrInvalid] if a channel cannot have n consumers; [ErrClosed] also if
// the channel is closed meanwhile.
func (ch *Channel) WaitForConsumers(ctx context.Context, n int) error {
	r := &wire.AwaitConsumers{Channel: ch.stream.Identity.ID, Count: uint64(max(n, 0))}
	return ch.stream.Named(ch.client.session.Wait(ctx, session.Waiting, r, &r.Wait, session.Call{Into: &wire.EmptyReply{}}))
}

// Latest takes the newest frame of a broadcast, also if this client has taken the frame before. It waits for the first frame. The caller
// releases the frame. Latest subscribes for one frame: for every frame use [Channel.Frames].
//
// Errors: [ErrInvalid] if the channel is a queue; [ErrClosed] if the channel is closed and has no frame; those of Frames, for example the
// context's error.
func (ch *Channel) Latest(ctx context.Context) (*Frame, error) {
	if id := ch.stream.Identity; id.Mode == mempool.WorkQueue {
		return nil, typed.Errorf(ErrInvalid, "channel %q is a queue, whose frames are each for one consumer: take them with Frames, or publish what is only looked at in a broadcast, too", id.Name)
	}
	for frame, err := range ch.Frames(ctx, SubscribeOptions{Full: Latest}) {
		return frame, err
	}
	return nil, typed.Errorf(ErrClosed, "channel %q is closed and has no frame", ch.stream.Identity.Name)
}

// Close closes the channel. Nobody can publish in the channel any more, and the channel's name is free. Consumers still get the published
// frames. A waiting Publish fails. A queue waits until every frame is acknowledged: workers can still open it by its name and subscribe. If
// it has no worker for ten minutes, its frames are lost, and the service notes an event (`poolsvc serve --limit closed-queue-seconds=N`).
//
// Errors: [ErrDenied] if another user made the channel, [ErrClosed] if the channel is closed already.
func (ch *Channel) Close(ctx context.Context) error {
	return ch.stream.Named(ch.client.session.Call(ctx, &wire.CloseChannel{Channel: ch.stream.Identity.ID}, &wire.EmptyReply{}))
}

// DiscardChannel ends a closed queue, by the id in its [ChannelInfo]: its frames that are not acknowledged are lost, and the service notes an
// event. An open channel of the same name stays.
//
// Errors: [ErrInvalid] if the channel is open or a broadcast, [ErrDenied] if another user made it, [ErrClosed] if there is no such channel.
func (c *Client) DiscardChannel(ctx context.Context, channel uint64) error {
	return c.session.Call(ctx, &wire.CloseChannel{Channel: channel, Discard: true}, &wire.EmptyReply{})
}
