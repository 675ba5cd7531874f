package bridge

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// The features of protocol version 1.
const (
	featureTimelines = "timelines"
	featureChannels  = "channels"
)

// agree says which of a client's features the session has.
func (c *serverConn) agree(offered []string) (both []string) {
	if !slices.Contains(offered, featureTimelines) || service.ProbeTimelines() != nil {
		return both
	}
	c.ordered = true
	c.session.UseTimelines()
	both = append(both, featureTimelines)
	if slices.Contains(offered, featureChannels) {
		c.streams = true
		both = append(both, featureChannels)
	}
	return both
}

// mustAwaitWork says whether the client cannot be given a lease before nothing has to be waited for.
func (c *serverConn) mustAwaitWork(l *service.Lease) bool {
	return !c.ordered && len(l.Info().Wait) > 0
}

// stream carries out the requests of the features, if the session has them.
func (c *serverConn) stream(q uint32, r wire.Request) {
	switch r := r.(type) {
	case *wire.Timeline, *wire.Seal:
		if !c.ordered {
			c.lacks(q, r, featureTimelines)
			return
		}
	case *wire.MakeChannel, *wire.Find, *wire.CloseChannel, *wire.Join, *wire.Enter, *wire.Leave, *wire.Map, *wire.Doubt:
		if !c.streams {
			c.lacks(q, r, featureChannels)
			return
		}
	default:
		c.fail(q, situation.Of(ErrUnsupported, "the service does not know the operation %q", r.Op()))
		return
	}
	s := c.session
	switch r := r.(type) {
	case *wire.Timeline:
		c.timeline(q, r)
	case *wire.Seal:
		c.done(q, s.SealTimeline())
	case *wire.MakeChannel:
		info, err := s.MakeChannel(mempool.ChannelSpec{Name: r.Name, Pool: r.Pool, Mode: mempool.ChannelMode(r.Mode),
			Capacity: int(min(r.Capacity, math.MaxInt32)), Full: mempool.FullPolicy(r.Full)})
		c.replyChannel(q, info, err)
	case *wire.Find:
		c.find(q, r)
	case *wire.CloseChannel:
		c.done(q, s.CloseChannel(r.Channel))
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
	c.fail(q, situation.Of(ErrUnsupported, "%q belongs to the feature %q, which this session does not have", r.Op(), feature))
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
