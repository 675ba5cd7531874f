package bridge

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// subscription is a client's wish for a channel's frames.
type subscription struct {
	client  *Client
	channel mempool.ChannelInfo
	id      uint64

	mu    sync.Mutex
	inbox []*wire.Frame
	over  *wire.End
	left  bool          // nobody takes what comes
	wake  chan struct{} // has room for one
}

func (ch *Channel) subscribe(ctx context.Context, o mempool.SubscribeOptions) (*subscription, error) {
	o, err := o.Filled()
	if err != nil {
		return nil, err
	}
	c := ch.client
	sub := &subscription{client: c, channel: ch.info, wake: make(chan struct{}, 1)}
	var reply wire.SubscribeReply
	err = c.call(ctx, &wire.Subscribe{Channel: ch.info.ID, Credit: uint64(o.Credit), Oldest: o.Oldest, Full: string(o.Full)}, &call{into: &reply,
		files: func(*seqpacket.FDs) { // before the first frame comes
			sub.id = reply.Subscription
			c.mu.Lock()
			defer c.mu.Unlock()
			c.subs[sub.id] = sub
		},
		undo: sub.abandon})
	if err != nil {
		return nil, err
	}
	return sub, nil
}

// frameCame takes a frame off the wire. It runs in the goroutine that receives.
func (c *Client) frameCame(n *wire.Frame, fds *seqpacket.FDs) {
	if n.Lease != nil {
		c.arrived(*n.Lease, fds)
	}
	c.mu.Lock()
	sub := c.subs[n.Subscription]
	c.mu.Unlock()
	if sub == nil || !sub.take(n) {
		c.errands.add(func() { c.giveBack(n) })
	}
}

// giveBack ends the lease of a frame that nobody took: in a queue somebody else gets it.
func (c *Client) giveBack(n *wire.Frame) {
	if n.Lease != nil {
		_ = (&Lease{client: c, info: leaseOf(*n.Lease)}).end(true)
	}
}

// take puts a frame into the inbox, unless nobody looks into it any more.
func (sub *subscription) take(n *wire.Frame) bool {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	if sub.left {
		return false
	}
	sub.inbox = append(sub.inbox, n)
	sub.notify()
	return true
}

func (sub *subscription) notify() {
	select {
	case sub.wake <- struct{}{}:
	default: // it is awake
	}
}

func (c *Client) subscriptionEnded(n *wire.End) {
	c.mu.Lock()
	sub := c.subs[n.Subscription]
	delete(c.subs, n.Subscription)
	c.mu.Unlock()
	if sub == nil {
		return
	}
	sub.mu.Lock()
	defer sub.mu.Unlock()
	sub.over = n
	sub.notify()
}

// receive waits for the next frame; nil if the channel was shut.
func (sub *subscription) receive(ctx context.Context) (*wire.Frame, error) {
	for {
		sub.mu.Lock()
		if len(sub.inbox) > 0 {
			n := sub.inbox[0]
			sub.inbox[0] = nil
			sub.inbox = sub.inbox[1:]
			sub.mu.Unlock()
			return n, nil
		}
		over := sub.over
		sub.mu.Unlock()
		switch {
		case over == nil:
		case over.Failure != nil:
			return nil, remoteError("subscribe", over.Failure)
		default:
			return nil, nil
		}
		select {
		case <-sub.wake:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-sub.client.done:
			return nil, sub.client.err
		}
	}
}

func (sub *subscription) next(ctx context.Context) (*Frame, error) {
	n, err := sub.receive(ctx)
	if n == nil || err != nil {
		return nil, err
	}
	return sub.frame(ctx, n)
}

// frame makes of what came a frame whose memory is mapped, or with an error one whose lease, if it has one, is unmapped.
func (sub *subscription) frame(ctx context.Context, n *wire.Frame) (*Frame, error) {
	f := &Frame{Seq: n.Sequence, Time: time.Unix(0, int64(n.Time)), Meta: n.Meta, Dropped: n.Dropped, channel: &sub.channel}
	if n.Lease == nil {
		err := situation(ErrInternal, "frame %d came without a lease", n.Sequence)
		if n.Failure != nil {
			err = remoteError("frame", n.Failure)
		}
		return f, errors.Join(err, sub.more())
	}
	c := sub.client
	l := &Lease{client: c, info: leaseOf(*n.Lease)}
	err := c.enter()
	if err == nil {
		l, err = c.adopt(ctx, *n.Lease)
		c.leave()
	}
	if err != nil {
		f.unmapped = l
	} else {
		f.Lease = l
	}
	return f, err
}

// more lets another frame come in the place of one that came without a lease.
func (sub *subscription) more() error {
	err := sub.client.send(0, &wire.Credit{Subscription: sub.id, Frames: 1})
	if errors.Is(err, ErrDisconnected) || errors.Is(err, ErrClosed) {
		return nil // the caller that waits for frames is told
	}
	return err
}

// abandon ends the subscription and gives back what nobody took.
func (sub *subscription) abandon() {
	c := sub.client
	sub.mu.Lock()
	left := sub.inbox
	sub.inbox, sub.left = nil, true
	over := sub.over != nil
	sub.mu.Unlock()
	if !over {
		_ = c.send(0, &wire.Unsubscribe{Subscription: sub.id}) // it fails with the connection
	}
	c.mu.Lock()
	delete(c.subs, sub.id)
	c.mu.Unlock()
	for _, n := range left {
		c.giveBack(n)
	}
}
