package stream

import (
	"context"
	"errors"
	"math"
	"os"
	"sync"
	"sync/atomic"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/spin"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// member is a client's member of a channel: a producer or a consumer.
type member struct {
	streams *Streams
	session *session.Session
	channel mempool.ChannelIdentity
	role    shmchannel.Role
	id      uint64
	// timeline is the client's own timeline.
	timeline  uint64
	forgotten atomic.Bool                                 // the client has forgotten the member, because the channel was destroyed
	add       func(seat int, id uint64, f *os.File) error // takes the file of a member of the other role
	depart    func(context.Context)                       // leaves the channel
	counts    func() shmchannel.Counts                    // returns how many frames the member has published or taken
	waits     session.Waits                               // a producer's waits for room, or a consumer's waits for frames
	unwatch   func() bool                                 // stops the context function that wakes the member when the client ends

	mu     sync.Mutex
	known  map[int]uint64 // by seat: the newest member of the other role whose file has come
	came   chan struct{}  // closed when the next file has come
	broken error          // error of a file that could not be used
}

func newMember(st *Streams, role shmchannel.Role) member {
	return member{streams: st, session: st.session, role: role, unwatch: func() bool { return false },
		known: make(map[int]uint64), came: make(chan struct{})}
}

// join makes the client a member of the channel that r names. If `try` is Waiting, join waits until a channel of that name exists. The function
// `open` opens the member with the files that the service sent, and sets m.add. If a step after the service's reply fails, the client removes
// the member from the channel again.
func (m *member) join(ctx context.Context, try session.Attempt, r *wire.Join, open func(shmchannel.MemberConfig) error) error {
	s := m.session
	clock, err := s.Timelines.Clock(ctx) // a member's fences must be of a timeline that was sealed before the member joins
	if err != nil {
		return err
	}
	m.timeline = clock.Timeline()
	r.Role = m.role.String()
	var reply wire.JoinReply
	var files []*os.File
	err = s.Wait(ctx, try, r, &r.Wait, session.Call{Into: &reply,
		OnReply: func(fds *seqpacket.FDs) { files = session.TakeFiles(fds, reply.Export.FDs) },
		Undo: func() {
			session.CloseFiles(files)
			_ = s.Send(&wire.Leave{Channel: reply.Channel.ID, Member: reply.Member}) // Send fails only if the connection is gone
		}})
	if err != nil {
		return err
	}
	defer session.CloseFiles(files)
	m.channel, m.id = convert.ChannelIdentity(reply.Channel), reply.Member
	if len(files) != 3 {
		m.sendLeave()
		return typed.Errorf(convert.ErrProtocol, "a member of channel %q comes with three files, this one with %d", m.channel.Name, len(files))
	}
	err = open(shmchannel.MemberConfig{Roster: files[0], Sequencer: files[1], Own: files[2], Seat: seatOf(reply.Seat), ID: reply.Member,
		Spin: spin.Time, Spinner: new(spinner)})
	if err != nil {
		m.sendLeave()
		return err
	}
	m.streams.enlist(m)
	err = s.Call(ctx, &wire.Enter{Channel: m.channel.ID, Member: m.id}, &wire.EmptyReply{})
	if err != nil {
		m.streams.forget(m)
		m.depart(ctx)
	}
	return err
}

// spinner decides whether a member spins before it sleeps: only if spinning has been useful and few other waiters spin.
type spinner struct{ spin.Adaptive }

func (e *spinner) Begin() bool { return e.Worth() && spin.Begin() }

func (e *spinner) End(found bool) {
	spin.End()
	e.Learn(found)
}

// sendLeave tells the service that the member leaves. sendLeave fails only if the connection is gone.
func (m *member) sendLeave() {
	_ = m.session.Send(&wire.Leave{Channel: m.channel.ID, Member: m.id})
}

func seatOf(seat uint64) int { return int(min(seat, math.MaxInt32)) }

// meet takes the file of another member. A notice without a file means that the other member has left already.
func (m *member) meet(n *wire.MemberCame, files []*os.File) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seat := seatOf(n.Seat)
	if m.known[seat] >= n.Member {
		return
	}
	var err error
	switch {
	case n.Export.FDs == 0:
	case len(files) == 1:
		err = m.add(seat, n.Member, files[0])
	default:
		err = typed.Errorf(convert.ErrProtocol, "the file of a member of channel %q did not come along", m.channel.Name)
	}
	if err != nil && !errors.Is(err, shmchannel.ErrLeft) && m.role == shmchannel.ProducerRole {
		m.broken = err // a producer needs the files of all consumers; a consumer can do without, and the frames of that producer fail
	}
	m.known[seat] = n.Member
	close(m.came)
	m.came = make(chan struct{})
}

// await waits for the file of another member, which u names. A call that is made Once waits only until the service has answered a request: it
// has sent the file before if that member has entered. If the file has not come then, await returns false.
//
// Errors: the context's error, or the error of a file that cannot be used.
func (m *member) await(ctx context.Context, try session.Attempt, u *shmchannel.UnknownMemberError) (bool, error) {
	ctx, cancel := m.session.Joint(ctx)
	defer cancel()
	for answered := false; ; {
		m.mu.Lock()
		known, came, broken := m.known[u.Seat] >= u.ID, m.came, m.broken
		m.mu.Unlock()
		switch {
		case known || broken != nil:
			return broken == nil, broken
		case answered:
			return false, nil
		case try == session.Once:
			_ = m.session.Call(ctx, &wire.AwaitConsumers{Channel: m.channel.ID, Count: 1}, &wire.EmptyReply{}) // the answer does not matter
			if err := m.over(ctx); err != nil {
				return false, err
			}
			answered = true
			continue
		}
		select {
		case <-came:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// over returns an error if the client or the caller's ctx has ended.
func (m *member) over(ctx context.Context) error {
	if err := m.session.Over(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return typed.Ended(ctx)
	}
	return nil
}

func gone(channel string) error {
	return typed.Errorf(mempool.ErrClosed, "channel %q is gone: this or another program has closed it, or its pool was destroyed; "+
		"make it again (Client.CreateChannel)", channel)
}

// failure returns the error for the caller of a call that failed with err. ctx is the caller's context.
func (m *member) failure(ctx context.Context, err error) error {
	ch := m.channel.Name
	if over := m.over(ctx); over != nil {
		return over
	}
	switch {
	case errors.Is(err, shmchannel.ErrClosed) || m.forgotten.Load():
		return typed.Errorf(mempool.ErrClosed, "channel %q is closed", ch)
	case errors.Is(err, shmchannel.ErrDestroyed):
		return gone(ch)
	case errors.Is(err, shmchannel.ErrInHand):
		return typed.Errorf(mempool.ErrLimit, "channel %q: %v", ch, err)
	case errors.Is(err, shmchannel.ErrCorrupt):
		return typed.Errorf(convert.ErrProtocol, "channel %q: %v", ch, err)
	case errors.Is(err, shmchannel.ErrInvalid):
		return typed.Errorf(mempool.ErrInvalid, "channel %q: %v", ch, err)
	case errors.Is(err, shmchannel.ErrLeft): // the service removes members when the session ends; the session's error says why
		working := m.session.Working()
		select {
		case <-working.Done():
			return context.Cause(working)
		case <-ctx.Done():
			return typed.Ended(ctx)
		}
	}
	return err
}

// patient is the context of a call that waits. Its Err method returns an error if the caller's context has ended, or if the session is being
// closed or its connection is gone. The Done channel of patient does not close when the session ends. So the member of the channel wakes its
// waiting calls when the context Working of the session ends, and these calls then check Err.
type patient struct {
	context.Context
	session *session.Session
}

func (p *patient) Err() error {
	if err := p.session.Over(); err != nil {
		return err
	}
	return p.Context.Err()
}
