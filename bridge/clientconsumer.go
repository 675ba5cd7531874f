package bridge

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// consuming is a client's part in a channel as a consumer. There is one for each loop over frames.
type consuming struct {
	membership
	native *shmchannel.Consumer
	latest shmchannel.Frame // of next
	leaves sync.Once

	users atomic.Int64 // frames that the user has, and one until the consumer leaves: the last unmaps the channel
}

// consume joins the channel.
func (ch *Channel) consume(ctx context.Context, o mempool.SubscribeOptions) (*consuming, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &consuming{membership: newMembership(ch, shmchannel.ConsumerRole)}
	s.users.Store(1)
	s.depart = func(context.Context) { s.abandon() }
	err := s.join(ctx, &wire.Join{Oldest: o.Oldest, Full: string(o.Full)}, func(config shmchannel.MemberConfig) (err error) {
		s.native, err = shmchannel.OpenConsumer(shmchannel.ConsumerConfig{MemberConfig: config, Reached: s.reached})
		if err == nil {
			s.add = s.native.AddTrack
			s.unwatch = context.AfterFunc(s.client.working, s.native.Wake)
		}
		return err
	})
	return s, err
}

// reached says whether a fence of the client's own is reached.
func (s *consuming) reached(t shmchannel.Fence) bool {
	return s.client.timelines.past(mempool.Fence{Timeline: s.timeline, Word: t.Word, Value: t.Value})
}

// next waits for the next frame: nil if none will come any more. A frame may come with an error, and an error without a frame is the
// last.
func (s *consuming) next(caller context.Context) (*Frame, error) {
	f := &s.latest
	err := s.take(caller, f)
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

// take takes the next frame.
func (s *consuming) take(caller context.Context, f *shmchannel.Frame) error {
	if err := s.over(caller); err != nil { // though frames may be there for ever
		return err
	}
	if ok, err := s.native.TryTake(f); ok {
		return nil
	} else if err != nil && !errors.Is(err, shmchannel.ErrUnknownMember) {
		return err
	}
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

// doubt tells the service of a frame that contradicts itself. The frame comes without a lease.
func (s *consuming) doubt(number uint64, why error) (*Frame, error) {
	_ = s.client.send(0, &wire.Doubt{Channel: s.channel.ID, Member: s.id, Sequence: number}) // it fails with the connection
	return &Frame{Seq: number, channel: &s.channel}, situation.Of(ErrProtocol, "frame %d of channel %q: %v", number, s.channel.Name, why)
}

// abandon leaves the channel. Frames that the user has can still be settled and released.
func (s *consuming) abandon() {
	s.leaves.Do(func() {
		c := s.client
		c.shared.forget(&s.membership)
		_ = s.native.Leave()                                            // it is not closed
		_ = c.send(0, &wire.Leave{Channel: s.channel.ID, Member: s.id}) // it fails with the connection
		s.leaveNative()
	})
}

// leaveNative unmaps the channel if nobody needs it any more.
func (s *consuming) leaveNative() {
	if s.users.Add(-1) == 0 {
		s.unwatch()
		_ = s.native.Close() // it unmaps files; that does not fail
	}
}
