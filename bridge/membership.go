package bridge

import (
	"context"
	"errors"
	"maps"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/internal/spin"
	"github.com/poolbridge/poolbridge/mempool"
)

// memberships holds the client's members in all channels.
type memberships struct {
	mu        sync.Mutex
	members   map[uint64]map[*membership]struct{} // by channel
	producers map[uint64]*producing               // by channel
	tallies   tallies

	publishers map[*Publisher]struct{}
	ticking    bool           // a timer or a task will call Client.tick
	giving     sync.WaitGroup // counts goroutines that wait for consumers' work and then release a lease
}

// membership is a client's member of a channel: a producer or a consumer.
type membership struct {
	client  *Client
	channel mempool.ChannelIdentity
	role    string
	id      uint64
	// timeline is the client's own timeline.
	timeline  uint64
	forgotten atomic.Bool                                 // the client has forgotten the member, because the channel was destroyed
	add       func(slot int, id uint64, f *os.File) error // takes the file of a member of the other role
	depart    func(context.Context)                       // leaves the channel
	counts    func() shmchannel.Counts                    // returns how many frames the member has published or taken
	waits     waits                                       // a producer's waits for room, or a consumer's waits for frames
	unwatch   func() bool                                 // stops the context function that wakes the member when the client ends

	mu     sync.Mutex
	known  map[int]uint64 // by slot: the newest member of the other role whose file has come
	came   chan struct{}  // closed when the next file has come
	broken error          // error of a file that could not be used
}

func newMembership(ch *Channel, role shmchannel.Role) membership {
	return membership{unwatch: func() bool { return false }, client: ch.client, channel: ch.info, role: role.String(), known: make(map[int]uint64), came: make(chan struct{})}
}

// join makes the client a member of the channel. The function `open` opens the member with the files that the service sent, and sets m.add.
// If a step after the service's reply fails, the client removes the member from the channel again.
func (m *membership) join(ctx context.Context, r *wire.Join, open func(shmchannel.MemberConfig) error) error {
	c := m.client
	clock, err := c.session.Timelines.Clock(ctx) // a member's fences must be of a timeline that was sealed before the member joins
	if err != nil {
		return err
	}
	m.timeline = clock.Timeline()
	r.Channel, r.Role = m.channel.ID, m.role
	var reply wire.JoinReply
	var files []*os.File
	err = c.session.Do(ctx, r, &session.Call{Into: &reply,
		Files: func(fds *seqpacket.FDs) { files = session.TakeFiles(fds, reply.Export.FDs) },
		Undo: func() {
			session.CloseFiles(files)
			_ = c.session.Send(&wire.Leave{Channel: m.channel.ID, Member: reply.Member})
		}})
	if err != nil {
		return err
	}
	defer session.CloseFiles(files)
	m.id = reply.Member
	if len(files) != 3 {
		m.sendLeave()
		return situation.Of(ErrProtocol, "a member of channel %q comes with three files, this one with %d", m.channel.Name, len(files))
	}
	err = open(shmchannel.MemberConfig{Roster: files[0], Sequencer: files[1], Own: files[2], Slot: slotOf(reply.Slot), ID: reply.Member,
		Spin: spin.Time, Spinner: new(spinner)})
	if err != nil {
		m.sendLeave()
		return err
	}
	c.shared.enlist(m)
	err = c.session.Call(ctx, &wire.Enter{Channel: m.channel.ID, Member: m.id}, &wire.EmptyReply{})
	if err != nil {
		c.shared.forget(m)
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
func (m *membership) sendLeave() {
	_ = m.client.session.Send(&wire.Leave{Channel: m.channel.ID, Member: m.id})
}

func slotOf(slot uint64) int { return int(min(slot, math.MaxInt32)) }

func (s *memberships) enlist(m *membership) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members == nil {
		s.members = make(map[uint64]map[*membership]struct{})
	}
	of := s.members[m.channel.ID]
	if of == nil {
		of = make(map[*membership]struct{})
		s.members[m.channel.ID] = of
	}
	of[m] = struct{}{}
	s.tallies.join(m)
}

func (s *memberships) forget(m *membership) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.members[m.channel.ID]
	s.tallies.leave(m)
	if delete(of, m); len(of) == 0 {
		delete(s.members, m.channel.ID)
	}
}

// memberCame passes a notice about a member, with the member's file, to this client's members of the other role. memberCame runs in the
// receiving goroutine.
func (s *memberships) memberCame(n *wire.MemberCame, fds *seqpacket.FDs) {
	files := session.TakeFiles(fds, n.Export.FDs)
	defer session.CloseFiles(files)
	s.mu.Lock()
	members := slices.Collect(maps.Keys(s.members[n.Channel]))
	s.mu.Unlock()
	for _, m := range members {
		if m.role != n.Role {
			m.meet(n, files)
		}
	}
}

// meet takes the file of another member. A notice without a file means that the other member has left already.
func (m *membership) meet(n *wire.MemberCame, files []*os.File) {
	m.mu.Lock()
	defer m.mu.Unlock()
	slot := slotOf(n.Slot)
	if m.known[slot] >= n.Member {
		return
	}
	var err error
	switch {
	case n.Export.FDs == 0:
	case len(files) == 1:
		err = m.add(slot, n.Member, files[0])
	default:
		err = situation.Of(ErrProtocol, "the file of a member of channel %q did not come along", m.channel.Name)
	}
	if err != nil && !errors.Is(err, shmchannel.ErrLeft) && m.role == shmchannel.ProducerRole.String() {
		m.broken = err // a producer needs the files of all consumers; a consumer can do without, and the frames of that producer fail
	}
	m.known[slot] = n.Member
	close(m.came)
	m.came = make(chan struct{})
}

// await waits for the file of another member, which u names.
func (m *membership) await(ctx context.Context, u *shmchannel.UnknownMemberError) error {
	ctx, cancel := m.client.session.Joint(ctx)
	defer cancel()
	for {
		m.mu.Lock()
		known, came, broken := m.known[u.Slot] >= u.ID, m.came, m.broken
		m.mu.Unlock()
		if known || broken != nil {
			return broken
		}
		select {
		case <-came:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// over returns an error if the client or the caller's ctx has ended.
func (m *membership) over(ctx context.Context) error {
	switch {
	case m.client.session.Working().Err() != nil:
		return context.Cause(m.client.session.Working())
	case ctx.Err() != nil:
		return situation.Ended(ctx)
	}
	return nil
}

// failure returns the error for the caller of a call that failed with err. ctx is the caller's context.
func (m *membership) failure(ctx context.Context, err error) error {
	ch := m.channel.Name
	if over := m.over(ctx); over != nil {
		return over
	}
	switch {
	case errors.Is(err, shmchannel.ErrClosed) || m.forgotten.Load():
		return situation.Of(ErrClosed, "channel %q is closed", ch)
	case errors.Is(err, shmchannel.ErrDestroyed):
		return situation.Of(ErrClosed, "channel %q is gone: it was closed, or its pool was destroyed", ch)
	case errors.Is(err, shmchannel.ErrInHand):
		return situation.Of(ErrLimit, "channel %q: %v", ch, err)
	case errors.Is(err, shmchannel.ErrCorrupt):
		return situation.Of(ErrProtocol, "channel %q: %v", ch, err)
	case errors.Is(err, shmchannel.ErrInvalid):
		return situation.Of(ErrInvalid, "channel %q: %v", ch, err)
	case errors.Is(err, shmchannel.ErrLeft): // the service removes members when the session ends; the client's error says why
		select {
		case <-m.client.session.Working().Done():
			return context.Cause(m.client.session.Working())
		case <-ctx.Done():
			return situation.Ended(ctx)
		}
	}
	return err
}

// patient is the context of a call that waits. Its Err method returns an error if the caller's context has ended, or if the client is closed
// or its connection is gone. The Done channel of patient does not close when the client ends. So the member of the channel wakes its waiting
// calls when the context Client.working ends, and these calls then check Err.
type patient struct {
	context.Context
	client *Client
}

func (p *patient) Err() error {
	if p.client.session.Working().Err() != nil {
		return context.Cause(p.client.session.Working())
	}
	return p.Context.Err()
}

// leaveShared removes the client's members from all channels. Before Close calls leaveShared, Close ends the client's leases. The method
// giveUp has started goroutines, each of which releases a lease when the consumers' work on the lease's memory has ended. leaveShared waits
// for these goroutines, but at most for the time closeGrace.
func (c *Client) leaveShared() {
	s := &c.shared
	s.mu.Lock()
	var leave []func(context.Context)
	for _, of := range s.members {
		for m := range of {
			leave = append(leave, m.depart)
		}
	}
	s.mu.Unlock()
	ctx, cancel := c.session.Grace()
	defer cancel()
	for _, f := range leave {
		f(ctx)
	}
	given := make(chan struct{})
	go func() {
		s.giving.Wait()
		close(given)
	}()
	select {
	case <-given:
	case <-ctx.Done(): // the service releases the remaining leases when the session ends
	}
}

// close unmaps the channels in which the client is a producer.
func (s *memberships) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, p := range s.producers {
		errs = append(errs, p.close())
	}
	return errors.Join(errs...)
}
