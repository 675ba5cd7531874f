package service

import (
	"context"
	"maps"
	"os"
	"slices"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
	"github.com/poolbridge/poolbridge/mempool/service/streams"
)

// Joined is what a session needs to take part in a channel.
type Joined struct {
	Channel mempool.ChannelIdentity
	// Seat is the member's index in the roster. ID is a number that no other member of the channel has or gets later.
	Seat int
	ID   uint64
	// Export has three files: the roster, the sequencer, and the member's own file. The service closes these files, so the caller must not
	// close them.
	Export mempool.Export
}

// MemberCame gives a session the file of a new member of a channel. If the new member is a producer, the session's consumers in the channel
// need this file. If the new member is a consumer, the session's producers need it. The service closes the file when it frees the new
// member's seat. File is nil for a consumer that has left before it entered: producers may wait for its file.
type MemberCame struct {
	Channel uint64
	Role    MemberRole
	Seat    int
	Member  uint64
	File    *os.File
}

func (MemberCame) notice() {}

// Member is a member of a channel as a session names it: by id. If the session has no such member, the methods return errors.
type Member struct {
	channel Channel
	id      uint64
}

// Member names a member of the channel by id.
func (c Channel) Member(id uint64) Member { return Member{c, id} }

// findLocked finds the member.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrDenied], [mempool.ErrClosed].
func (of Member) findLocked() (*ledger.Member, error) {
	s := of.channel.session
	return s.svc.ledger.Member(s.rec, of.channel.id, of.id)
}

// Join makes a new member of the channel. The session's process must then map the member's files and call [Member.Enter]. If
// the session's timeline is already sealed, the member's fences belong to this timeline. Otherwise the member has no fences.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrInvalid], [mempool.ErrDenied], [mempool.ErrLimit], [mempool.ErrOutOfMemory],
// [mempool.ErrClosed] for a channel that is closed; a consumer can join a closed queue as long as not all of its frames are acknowledged.
func (c Channel) Join(spec MemberSpec) (Joined, error) {
	s := c.session
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	if _, err := svc.ledger.Channel(s.rec, c.id); err != nil { // the caller gets this error without waiting for the store
		return Joined{}, err
	}
	file, err := svc.descriptors.sparesLocked(memberFile(spec.Role))
	defer svc.descriptors.giveBack(file)
	if err != nil {
		return Joined{}, err
	}
	rec, err := svc.ledger.Channel(s.rec, c.id)
	if err != nil {
		return Joined{}, err
	}
	j, err := svc.channels.of(rec).joinLocked(s, spec, file[0])
	if err == nil {
		s.keepAnswerLocked(context.Background(), answerOf(j))
	}
	return j, err
}

// memberFile returns the name of the file of a member.
func memberFile(role MemberRole) string {
	if role == Consumer {
		return shmchannel.CursorName
	}
	return shmchannel.TrackName
}

// joinLocked makes a new member of the channel, which the session may use, with a spare file.
func (ch *channel) joinLocked(s *Session, spec MemberSpec, file *spare) (Joined, error) {
	switch {
	case ch.Closed && (!ch.Drains() || spec.Role != Consumer):
		return Joined{}, ch.ErrClosed()
	case s.notify == nil:
		return Joined{}, typed.Errorf(mempool.ErrInvalid, "session %d gets no notices, and cannot join channel %q", s.rec.ID, ch.Info.Name)
	}
	if err := s.svc.ledger.MayJoin(s.rec, ch.Channel, spec); err != nil {
		return Joined{}, err
	}
	m, err := ch.Add(s.rec, spec, file.file, ch.tidyLocked)
	if err != nil {
		return Joined{}, err
	}
	s.noteUse()
	m.File = file.use()
	return ch.describeJoined(m), nil
}

func (ch *channel) describeJoined(m *ledger.Member) Joined {
	return Joined{Channel: ch.Info, Seat: m.Seat, ID: m.ID, Export: mempool.Export{Files: ch.Files(m)}}
}

// Enter activates the member. The member's process must have mapped the member's files before. Enter first announces the new
// member to all sessions that have members of the other role. It then returns the members of the other role, including producers that left
// but whose frames consumers still need. The caller must send the files of the returned members to the session before it answers the
// session's request.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrInvalid] if the member has entered before, or if the client itself has sealed the member's
// file, [mempool.ErrClosed].
func (of Member) Enter() ([]MemberCame, error) {
	svc := of.channel.session.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	m, err := of.findLocked()
	if err != nil {
		return nil, err
	}
	if err := m.MayEnter(); err != nil {
		return nil, err
	}
	ch := svc.channels.of(m.Channel)
	if ch.Closed && !m.Reserved && (m.Role == Producer || ch.Info.Mode != mempool.WorkQueue) {
		return nil, ch.ErrClosed()
	}
	others := ch.introduceLocked(m)
	if err := ch.Enter(m); err != nil {
		if m.Reserved { // producers must not wait for it
			ch.leaveLocked(m, mempool.SessionFailed)
		}
		ch.tidyLocked()
		return nil, err
	}
	if m.Role == Consumer {
		ch.joined.broadcast()
	}
	of.channel.session.keepAnswerLocked(context.Background(), 0)
	return others, nil
}

// introduceLocked announces a new member to the sessions of the members of the other role, and returns these members.
func (ch *channel) introduceLocked(m *ledger.Member) (others []MemberCame) {
	told := make(map[*ledger.Session]struct{})
	for _, o := range m.Others() {
		others = append(others, ch.came(o))
		if o.Timeline != nil {
			o.Timeline.Show(m.Session)
		}
		if _, again := told[o.Session]; again || o.Session.Ended {
			continue
		}
		told[o.Session] = struct{}{}
		if m.Timeline != nil {
			m.Timeline.Show(o.Session)
		}
		if o.Session != m.Session {
			ch.svc.sessionOf(o.Session).tellLocked(ch.came(m))
		}
	}
	if _, own := told[m.Session]; own {
		others = append(others, ch.came(m))
	}
	return others
}

func (ch *channel) came(m *ledger.Member) MemberCame {
	return MemberCame{Channel: ch.Info.ID, Role: m.Role, Seat: m.Seat, Member: m.ID, File: ch.File(m)}
}

// leaveLocked removes a member, as [streams.Stream.Leave] does. If producers may wait for the member's file, leaveLocked tells them that the
// member has left.
func (ch *channel) leaveLocked(m *ledger.Member, how mempool.SessionEnding) {
	ch.Leave(m, how)
	if !m.Reserved {
		return
	}
	for _, p := range ch.MembersOf(Producer) {
		if p.Entered && !p.Left {
			ch.svc.sessionOf(p.Session).tellLocked(MemberCame{Channel: ch.Info.ID, Role: Consumer, Seat: m.Seat, Member: m.ID})
		}
	}
}

// Leave removes the member from its channel. Before a consumer calls Leave, the consumer must store in the channel's shared
// memory that it has left. When the last producer of the session in this channel leaves, the service ends the session's write leases on
// buffers that the channel or its consumers still need. The channel retains these buffers until nothing needs them.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrClosed]; [mempool.ErrBusy] for a producer if a consumer takes or releases a frame at that
// moment, because the service then does not know which buffers the channel needs.
func (of Member) Leave() error {
	svc := of.channel.session.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	m, err := of.findLocked()
	if err != nil || m.Left {
		return err
	}
	ch := svc.channels.of(m.Channel)
	if m.Role == Producer {
		if err := ch.endLendingLocked(m); err != nil {
			return err
		}
	}
	ch.leaveLocked(m, "")
	of.channel.session.keepAnswerLocked(context.Background(), 0)
	ch.tidyLocked()
	return nil
}

// endLendingLocked ends the session's write leases on buffers that the channel or its consumers still need, if the producer m is the last of
// the session's producers in the channel.
//
// Errors: [mempool.ErrBusy].
func (ch *channel) endLendingLocked(m *ledger.Member) error {
	var producers []*ledger.Member
	for own := range m.Session.Members {
		if own.Channel != ch.Channel || own.Role != Producer || !own.Entered {
			continue
		}
		if own != m && !own.Left {
			return nil
		}
		producers = append(producers, own)
	}
	lent := streams.Lending{}.Lend(ch.Stream, producers) // what the channel needs now: these producers publish no more frames
	done, ok := ch.ConsumersDone()                       // fences for the blocks that the channel does not need any more
	if lent.Unsure() || !ok {
		return typed.Errorf(mempool.ErrBusy, "a consumer of channel %q takes or releases a frame at this moment; try again", ch.Info.Name)
	}
	ch.Leave(m, "")
	for _, l := range slices.Collect(maps.Values(m.Session.Leases)) {
		switch b := l.Buffer; {
		case !l.Write || b.Block.Pool != ch.Pool:
		case lent.Needs(b.Block) && !b.Divided(): // of a divided buffer, the channel has ranges
			lent.Retain(l)
			ch.svc.endLeaseLocked(l, false, nil)
		default:
			b.Block.SetFences(ch.svc.timelines.Add(b.Block.Fences, done))
		}
	}
	return nil
}

// Doubt notes as an event that the member, a consumer, has acknowledged a frame instead of giving it to its program: see
// [streams.Stream.Doubt].
//
// Errors: [mempool.ErrNotFound], [mempool.ErrInvalid] for a member that is no consumer, [mempool.ErrClosed].
func (of Member) Doubt(number, deliveries uint64) error {
	svc := of.channel.session.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	m, err := of.findLocked()
	if err != nil {
		return err
	}
	if m.Role != Consumer {
		return typed.Errorf(mempool.ErrInvalid, "member %d of channel %q is no consumer", m.ID, m.Channel.Info.Name)
	}
	svc.channels.of(m.Channel).Doubt(m.Session, number, deliveries)
	return nil
}
