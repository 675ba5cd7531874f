package service

import (
	"context"
	"maps"
	"slices"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
	"github.com/poolbridge/poolbridge/mempool/service/streams"
)

// Member is a member of a channel as a session names it: by id. If the session has no such member, the methods return errors.
type Member struct {
	session     *Session
	channel, id uint64
}

// findLocked finds the member.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrDenied], [mempool.ErrClosed].
func (of Member) findLocked() (*ledger.Member, error) {
	return of.session.svc.ledger.Member(of.session.rec, of.channel, of.id)
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

// memberBits is how many bits of the number from which an answer is made again are the id of a member. The rest is the id of its channel.
const memberBits = 32

func answerOf(j Joined) uint64 { return j.Channel.ID<<memberBits | j.ID }

// Enter activates the member. The member's process must have mapped the member's files before. Enter first announces the new
// member to all sessions that have members of the other role. It then returns the members of the other role, including producers that left
// but whose frames consumers still need. The caller must send the files of the returned members to the session before it answers the
// session's request.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrInvalid] if the member has entered before, or if the client itself has sealed the member's
// file, [mempool.ErrClosed].
func (of Member) Enter() ([]MemberCame, error) {
	svc := of.session.svc
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
	of.session.keepAnswerLocked(context.Background(), 0)
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

// Leave removes the member from its channel. Before a consumer calls Leave, the consumer must store in the channel's shared
// memory that it has left. When the last producer of the session in this channel leaves, the service ends the session's write leases on
// buffers that the channel or its consumers still need. The channel retains these buffers until nothing needs them.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrClosed]; [mempool.ErrBusy] for a producer if a consumer takes or releases a frame at that
// moment, because the service then does not know which buffers the channel needs.
func (of Member) Leave() error {
	svc := of.session.svc
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
	of.session.keepAnswerLocked(context.Background(), 0)
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
	svc := of.session.svc
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
