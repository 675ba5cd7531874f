package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// ErrFrameCorrupt means that what a producer wrote about a frame cannot be true.
var ErrFrameCorrupt = fmt.Errorf("%w: the frame is corrupt", mempool.ErrContentFailed)

// ErrNoProducers means that every producer of a channel has left, and that the channel is not closed.
var ErrNoProducers = fmt.Errorf("%w: no producer is left", mempool.ErrClosed)

// Consumer is a consumer of a channel. Each loop over frames has its own Consumer.
type Consumer struct {
	member
	shm    *shmchannel.Consumer
	latest shmchannel.Frame // the last frame that Take has taken
	leaves sync.Once
	fails  bool // whether the stream fails without producers

	users atomic.Int64 // number of frames that the user has, plus one until the consumer leaves; at 0 the client unmaps the channel
}

// Consume joins the channel as a consumer.
func (ch *Channel) Consume(ctx context.Context, o mempool.SubscribeOptions) (*Consumer, error) {
	c, err := ch.streams.consume(ctx, session.Once, wire.Join{Channel: ch.Identity.ID}, o)
	return c, ch.Named(err)
}

// Consume joins the channel with this name as a consumer. If `try` is Waiting, Consume waits until the channel exists.
func (st *Streams) Consume(ctx context.Context, try session.Attempt, name string, o mempool.SubscribeOptions) (*Consumer, error) {
	if err := mempool.ValidateName("channel", name); err != nil {
		return nil, err
	}
	return st.consume(ctx, try, wire.Join{Name: name}, o)
}

func (st *Streams) consume(ctx context.Context, try session.Attempt, r wire.Join, o mempool.SubscribeOptions) (*Consumer, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	r.Oldest, r.Full = o.Oldest, string(o.Full)
	s := &Consumer{member: newMember(st, shmchannel.ConsumerRole), fails: o.NoProducers == mempool.FailWithoutProducers}
	s.users.Store(1)
	s.depart = func(context.Context) { s.Leave() }
	err := s.join(ctx, try, &r, func(config shmchannel.MemberConfig) (err error) {
		s.shm, err = shmchannel.OpenConsumer(shmchannel.ConsumerConfig{MemberConfig: config, Reached: s.reached,
			NeedsProducers: s.fails || o.NoProducers == mempool.EndWithoutProducers})
		if err == nil {
			s.add, s.counts = s.shm.AddTrack, s.shm.Counts
			s.unwatch = context.AfterFunc(s.session.Working(), s.shm.Wake)
		}
		return err
	})
	return s, err
}

// Channel returns the channel.
func (s *Consumer) Channel() *mempool.ChannelIdentity { return &s.channel }

// reached reports whether a fence of the client's own timeline is reached.
func (s *Consumer) reached(t shmchannel.Fence) bool {
	return s.session.Timelines.Past(mempool.Fence{Timeline: s.timeline, Word: t.Word, Value: t.Value})
}

// Take waits for the next frame and takes it. It returns nil without an error if no frame will come any more. An error without a frame is the
// last result. With ErrFrameCorrupt comes a frame that has only a number, and the caller may call Take again. The next call of Take
// overwrites any other frame.
func (s *Consumer) Take(caller context.Context) (*shmchannel.Frame, error) {
	err := s.take(caller)
	for {
		spent, ok := errors.AsType[*shmchannel.UndeliverableError](err)
		if !ok {
			break
		}
		_ = s.session.Send(&wire.Doubt{Channel: s.channel.ID, Member: s.id, Sequence: spent.Number, Deliveries: spent.Deliveries}) // as in doubt
		err = s.take(caller)
	}
	switch {
	case err == nil:
		return &s.latest, nil
	case errors.Is(err, shmchannel.ErrEnded):
		return nil, nil
	case errors.Is(err, shmchannel.ErrAbandoned) && s.fails:
		return nil, typed.Errorf(ErrNoProducers, "channel %q is not closed, and %s", s.channel.Name, s.producers())
	case errors.Is(err, shmchannel.ErrAbandoned):
		return nil, nil
	}
	if bad, ok := errors.AsType[*shmchannel.FrameError](err); ok {
		return &shmchannel.Frame{Hand: shmchannel.Hand{Number: bad.Number}}, s.doubt(bad.Number, err)
	}
	err = s.failure(caller, err)
	if errors.Is(err, context.DeadlineExceeded) {
		since := ""
		if s.latest.Time != 0 {
			since = " since " + clock(time.Unix(0, int64(s.latest.Time)))
		}
		err = fmt.Errorf("channel %q: no frame came%s; %s: %w", s.channel.Name, since, s.producers(), err)
	}
	return nil, err
}

// Producers returns the channel's producers, as the native consumer does, and when the last one left if none takes part.
func (s *Consumer) Producers() (found []mempool.ChannelProducer, abandoned time.Time) {
	states, abandoned := s.shm.Producers()
	endings := append([]mempool.SessionEnding{""}, mempool.SessionEndings()...)
	for _, p := range states {
		found = append(found, mempool.ChannelProducer{PID: p.PID, Ending: endings[min(int(p.Ending), len(endings)-1)]})
	}
	return found, abandoned
}

// producers says who publishes in the channel, or how the producers left.
func (s *Consumer) producers() string {
	found, abandoned := s.Producers()
	if !abandoned.IsZero() {
		var named []string
		for _, p := range found[:min(len(found), mostNamed)] {
			named = append(named, p.String())
		}
		if n := len(found) - mostNamed; n > 0 {
			named = append(named, fmt.Sprintf("and %d more", n))
		}
		return "no producer is left since " + clock(abandoned) + ": " + strings.Join(named, ", ")
	}
	var pids []uint32
	for _, p := range found {
		if p.Ending == "" {
			pids = append(pids, p.PID)
		}
	}
	if pids == nil {
		return "no producer has joined yet"
	}
	return fmt.Sprintf("%s (pid %s)", count.Of(len(pids), "producer"), strings.Trim(fmt.Sprint(pids), "[]"))
}

// mostNamed is how many producers that left an error names.
const mostNamed = 8

func clock(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }

func (s *Consumer) take(caller context.Context) (err error) {
	if err := s.over(caller); err != nil { // check this first: if frames keep coming, the checks below never notice the end
		return err
	}
	if ok, err := s.shm.TryTake(&s.latest); ok {
		return nil
	} else if err != nil && !errors.Is(err, shmchannel.ErrUnknownMember) {
		return err
	}
	began := time.Now()
	defer func() { s.waits.Over(began, err == nil) }()
	ctx := &patient{Context: caller, session: s.session}
	for {
		err := s.shm.Take(ctx, &s.latest)
		unknown, ok := errors.AsType[*shmchannel.UnknownMemberError](err)
		if !ok {
			return err
		}
		if _, err := s.await(caller, session.Waiting, unknown); err != nil {
			return err
		}
	}
}

// doubt tells the service about a corrupt frame, and returns the frame's error.
func (s *Consumer) doubt(number uint64, why error) error {
	_ = s.session.Send(&wire.Doubt{Channel: s.channel.ID, Member: s.id, Sequence: number}) // Send fails only if the connection is gone
	return typed.Errorf(ErrFrameCorrupt, "frame %d of channel %q: %v", number, s.channel.Name, why)
}

// Adopt puts a frame that Take has returned into the user's hand, and makes l its lease. If the content will never be complete, Adopt
// returns [mempool.ErrContentFailed] or ErrFrameCorrupt, and the lease has ended. After any other error the lease has no memory, and the
// caller ends it.
func (s *Consumer) Adopt(ctx context.Context, l *session.Lease, hand *Hand, came *shmchannel.Frame) error {
	hand.by, hand.hand = s, came.Hand
	s.users.Add(1)
	ready, err := s.ready(ctx, came)
	l.InitFrame(s.session, hand, ready)
	if err == nil {
		err = s.session.Blocks.AdoptFrame(ctx, l, s.channel.ID, s.channel.Pool, came)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, session.ErrCorruptRecord):
		_ = l.EndLocked(false)
		return s.doubt(came.Number, err)
	case errors.Is(err, mempool.ErrContentFailed):
		return errors.Join(err, l.EndLocked(false))
	}
	return err
}

// ready returns the fences after which the frame's content is complete: one, or none if the content is complete.
func (s *Consumer) ready(ctx context.Context, came *shmchannel.Frame) ([]mempool.Fence, error) {
	if came.Ready.Value == 0 {
		return nil, nil
	}
	if came.Ready.Timeline == 0 {
		return nil, typed.Errorf(session.ErrCorruptRecord, "a producer without a timeline published a frame with a fence")
	}
	t := mempool.Fence{Timeline: came.Ready.Timeline, Word: came.Ready.Word, Value: came.Ready.Value}
	died := func() error {
		return typed.Errorf(mempool.ErrProducerDied, "frame %d of channel %q is incomplete: the process that wrote it died before finishing",
			came.Number, s.channel.Name)
	}
	page, err := s.session.Timelines.Page(ctx, t.Timeline)
	switch {
	case errors.Is(err, mempool.ErrNotFound) || errors.Is(err, mempool.ErrStale): // the service forgets a timeline only after its process has ended
		return nil, died()
	case err != nil:
		return nil, err
	}
	over, failed := page.Over(t)
	switch {
	case errors.Is(failed, mempool.ErrProducerDied):
		return nil, died()
	case failed != nil:
		return nil, fmt.Errorf("frame %d of channel %q: %w", came.Number, s.channel.Name, failed)
	case over:
		return nil, nil
	}
	return []mempool.Fence{t}, nil
}

// Leave leaves the channel. The user can still settle and release the frames that the user has.
func (s *Consumer) Leave() {
	s.leaves.Do(func() {
		s.streams.forget(&s.member)
		_ = s.shm.Leave() // Leave fails only if the member is closed, and the member is open
		s.sendLeave()
		s.dropUser()
	})
}

// dropUser subtracts 1 from s.users. If s.users is then 0, dropUser unmaps the channel.
func (s *Consumer) dropUser() {
	if s.users.Add(-1) == 0 {
		s.unwatch()
		_ = s.shm.Close() // Close only unmaps files, which does not fail
	}
}
