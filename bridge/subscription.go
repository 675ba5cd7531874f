package bridge

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// consuming is a consumer of a channel. Each loop over frames has its own value of type consuming.
type consuming struct {
	membership
	native *shmchannel.Consumer
	latest shmchannel.Frame // the last frame that next has taken
	leaves sync.Once

	users atomic.Int64 // number of frames that the user has, plus one until the consumer leaves; at 0 the client unmaps the channel
}

// consume joins the channel as a consumer.
func (ch *Channel) consume(ctx context.Context, o mempool.SubscribeOptions) (*consuming, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &consuming{membership: newMembership(ch.source(ctx), shmchannel.ConsumerRole)}
	s.users.Store(1)
	s.depart = func(context.Context) { s.abandon() }
	err := s.join(ctx, &wire.Join{Oldest: o.Oldest, Full: string(o.Full)}, func(config shmchannel.MemberConfig) (err error) {
		s.native, err = shmchannel.OpenConsumer(shmchannel.ConsumerConfig{MemberConfig: config, Reached: s.reached})
		if err == nil {
			s.add, s.counts = s.native.AddTrack, s.native.Counts
			s.unwatch = context.AfterFunc(s.client.session.Working(), s.native.Wake)
		}
		return err
	})
	return s, err
}

// reached reports whether a fence of the client's own timeline is reached.
func (s *consuming) reached(t shmchannel.Fence) bool {
	return s.client.session.Timelines.Past(mempool.Fence{Timeline: s.timeline, Word: t.Word, Value: t.Value})
}

// next waits for the next frame. It returns nil without an error if no frame will come any more. A frame and an error can come together.
// An error without a frame is the last result.
func (s *consuming) next(caller context.Context) (came *Frame, err error) {
	if s.client.tracer != nil {
		var end func(*Frame, error)
		caller, end = s.traceReceive(caller)
		defer func() { end(came, err) }()
	}
	f := &s.latest
	err = s.take(caller, f)
	switch {
	case err == nil:
		return s.frame(caller, f)
	case errors.Is(err, shmchannel.ErrEnded):
		return nil, nil
	}
	if bad, ok := errors.AsType[*shmchannel.FrameError](err); ok {
		return s.doubt(bad.Number, err)
	}
	return nil, s.failure(caller, err)
}

// take waits for the next frame and takes it. If the caller's context or the client ends first, take returns an error.
func (s *consuming) take(caller context.Context, f *shmchannel.Frame) (err error) {
	if err := s.over(caller); err != nil { // check this first: if frames keep coming, the checks below never notice the end
		return err
	}
	if ok, err := s.native.TryTake(f); ok {
		return nil
	} else if err != nil && !errors.Is(err, shmchannel.ErrUnknownMember) {
		return err
	}
	began := time.Now()
	defer func() { s.waits.over(began, err == nil) }()
	ctx := &patient{Context: caller, client: s.client}
	for {
		err := s.native.Take(ctx, f)
		unknown, ok := errors.AsType[*shmchannel.UnknownMemberError](err)
		if !ok {
			return err
		}
		if err := s.await(caller, unknown); err != nil {
			return err
		}
	}
}

// doubt tells the service about a corrupt frame. doubt returns the frame without a lease, and an error.
func (s *consuming) doubt(number uint64, why error) (*Frame, error) {
	_ = s.client.session.Send(&wire.Doubt{Channel: s.channel.ID, Member: s.id, Sequence: number}) // send fails only if the connection is gone
	return &Frame{Seq: number, channel: &s.channel}, situation.Of(ErrFrameCorrupt, "frame %d of channel %q: %v", number, s.channel.Name, why)
}

// abandon leaves the channel. The user can still settle and release the frames that the user has.
func (s *consuming) abandon() {
	s.leaves.Do(func() {
		c := s.client
		c.shared.forget(&s.membership)
		_ = s.native.Leave()                                                 // Leave fails only if the member is closed, and the member is open
		_ = c.session.Send(&wire.Leave{Channel: s.channel.ID, Member: s.id}) // send fails only if the connection is gone
		s.leaveNative()
	})
}

// leaveNative subtracts 1 from s.users. If s.users is then 0, leaveNative unmaps the channel.
func (s *consuming) leaveNative() {
	if s.users.Add(-1) == 0 {
		s.unwatch()
		_ = s.native.Close() // Close only unmaps files, which does not fail
	}
}
