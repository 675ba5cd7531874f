package bridge

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// The features of protocol version 1.
const (
	featureTimelines = "timelines"
	featureChannels  = "channels"
	featureRings     = "rings"
	featureShared    = "shared"
)

// agree says which of a client's features the session has.
func (c *serverConn) agree(offered []string) (both []string) {
	if slices.Contains(offered, featureRings) {
		c.rings = true
		both = append(both, featureRings)
	}
	if !slices.Contains(offered, featureTimelines) || mempool.ProbeTimelines() != nil {
		return both
	}
	c.ordered = true
	c.session.UseTimelines()
	both = append(both, featureTimelines)
	if slices.Contains(offered, featureChannels) {
		c.streams = true
		both = append(both, featureChannels)
		if slices.Contains(offered, featureShared) {
			c.shared = true
			both = append(both, featureShared)
		}
	}
	return both
}

// mustSettle says whether the client cannot be given a lease before nothing has to be waited for.
func (c *serverConn) mustSettle(l *mempool.Lease) bool { return !c.ordered && len(l.Info().Wait) > 0 }

// stream carries out the requests of the features, if the session has them.
func (c *serverConn) stream(q uint32, r wire.Request) {
	switch r := r.(type) {
	case *wire.Timeline, *wire.Seal:
		if !c.ordered {
			c.lacks(q, r, featureTimelines)
			return
		}
	case *wire.MakeChannel, *wire.Find, *wire.Send, *wire.Subscribe, *wire.Ack, *wire.Credit, *wire.Unsubscribe,
		*wire.Shut:
		if !c.streams {
			c.lacks(q, r, featureChannels)
			return
		}
	case *wire.Ring:
		if !c.rings {
			c.lacks(q, r, featureRings)
			return
		}
	case *wire.Join, *wire.Enter, *wire.Leave, *wire.Map, *wire.Doubt:
		if !c.shared {
			c.lacks(q, r, featureShared)
			return
		}
	default:
		c.fail(q, situation(ErrUnsupported, "the service does not know the operation %q", r.Op()))
		return
	}
	s := c.session
	switch r := r.(type) {
	case *wire.Ring:
		c.ring(q)
	case *wire.Timeline:
		c.timeline(q, r)
	case *wire.Seal:
		c.done(q, s.SealTimeline())
	case *wire.MakeChannel:
		if r.Shared && !c.shared {
			c.fail(q, noSharing(r.Name))
			return
		}
		info, err := s.MakeChannel(mempool.ChannelSpec{Name: r.Name, Pool: r.Pool, Mode: mempool.ChannelMode(r.Mode),
			Capacity: int(min(r.Capacity, math.MaxInt32)), Full: mempool.FullPolicy(r.Full), ThroughService: !r.Shared})
		c.replyChannel(q, info, err)
	case *wire.Find:
		c.find(q, r)
	case *wire.Send:
		c.sendTo(q, r)
	case *wire.Subscribe:
		c.subscribe(q, r)
	case *wire.Ack:
		settle := s.Ack
		if r.Back {
			settle = s.Requeue
		}
		c.done(q, each(r.Lease, r.Also, settle))
	case *wire.Credit:
		c.done(q, s.Credit(r.Subscription, r.Frames))
	case *wire.Unsubscribe:
		c.done(q, s.Unsubscribe(r.Subscription))
	case *wire.Shut:
		c.done(q, s.ShutChannel(r.Channel))
	case *wire.Join:
		c.join(q, r)
	case *wire.Enter:
		c.enter(q, r)
	case *wire.Leave:
		c.done(q, s.LeaveChannel(r.Channel, r.Member))
	case *wire.Map:
		c.mapBlock(q, r)
	case *wire.Doubt:
		c.done(q, s.DoubtFrame(r.Channel, r.Member, r.Sequence))
	}
}

func (c *serverConn) lacks(q uint32, r wire.Request, feature string) {
	c.fail(q, situation(ErrUnsupported, "%q belongs to the feature %q, which this session does not have", r.Op(), feature))
}

func (c *serverConn) timeline(q uint32, r *wire.Timeline) {
	id := r.Timeline
	var x mempool.Export
	var err error
	if id == 0 {
		id, x, err = c.session.Timeline()
	} else {
		x, err = c.session.FindTimeline(id)
	}
	if err != nil {
		c.fail(q, err)
		return
	}
	out, files := wireExport(x)
	c.reply(q, &wire.TimelineReply{Timeline: id, Words: wire.TimelineWords, Export: *out}, files)
}

func (c *serverConn) replyChannel(q uint32, info mempool.ChannelInfo, err error) {
	if err == nil && !info.ThroughService && !c.shared {
		err = noSharing(info.Name)
	}
	if err != nil {
		c.fail(q, err)
		return
	}
	c.reply(q, &wire.ChannelReply{Channel: wireChannel(info)}, nil)
}

func (c *serverConn) find(q uint32, r *wire.Find) {
	info, err := c.session.FindChannel(c.ctx, r.Name, 0)
	if r.Wait == 0 || q == 0 || !errors.Is(err, ErrNotFound) {
		c.replyChannel(q, info, err)
		return
	}
	c.waitFor(q, err, func(ctx context.Context) func() {
		info, err := c.session.FindChannel(ctx, r.Name, milliseconds(r.Wait))
		return func() { c.replyChannel(q, info, err) }
	})
}

// sendTo puts a frame into a channel. It takes its place in the order of sends before the next request is read.
func (c *serverConn) sendTo(q uint32, r *wire.Send) {
	complete, err := completionOf(r.Ready, r.Event)
	if err != nil {
		c.sent(q, r, 0, err)
		return
	}
	o := mempool.FrameOptions{Meta: r.Meta, Completion: complete}
	if r.Tensor != nil {
		t := tensorOf(*r.Tensor)
		o.Tensor = &t
	}
	number, waits, err := c.session.Send(r.Channel, r.Lease, o)
	if waits == nil {
		c.sent(q, r, number, err)
		return
	}
	var refused error
	if r.Wait > 0 {
		refused = c.wait(q, func(ctx context.Context) func() {
			number, err := waits.Wait(ctx, milliseconds(r.Wait))
			return func() { c.sent(q, r, number, err) }
		})
		if refused == nil {
			return
		}
	}
	number, err = waits.Wait(c.ctx, 0) // it leaves the line
	if err != nil && refused != nil {
		err = fmt.Errorf("%w (%s)", refused, err.Error())
	}
	c.sent(q, r, number, err)
}

// sent answers a send. One without a number is only answered if it failed.
func (c *serverConn) sent(q uint32, r *wire.Send, number uint64, err error) {
	switch {
	case err == nil:
		c.reply(q, &wire.SendReply{Sequence: number}, nil)
	case q != 0:
		c.fail(q, err)
	default:
		c.tell(&wire.Lost{Channel: r.Channel, Lease: r.Lease, Failure: *wireError(err)})
	}
}

func (c *serverConn) subscribe(q uint32, r *wire.Subscribe) {
	if q == 0 {
		return // nobody would ever know what a frame is for
	}
	if r.Credit > wire.MaxCredit {
		c.fail(q, situation(ErrInvalid, "the credit of a subscription is at most %d, not %d", wire.MaxCredit, r.Credit))
		return
	}
	id, err := c.session.Subscribe(r.Channel, mempool.SubscribeOptions{Oldest: r.Oldest, Full: mempool.FullPolicy(r.Full)})
	if err != nil {
		c.fail(q, err)
		return
	}
	c.reply(q, &wire.SubscribeReply{Subscription: id}, nil)
	_ = c.session.Credit(id, r.Credit) // after the reply: frames come now. It fails if the channel was shut meanwhile.
}
