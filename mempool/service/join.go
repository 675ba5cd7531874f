package service

import (
	"cmp"
	"errors"
	"os"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// MemberRole says whether a member of a channel is a producer or a consumer.
type MemberRole string

// These are the roles of members.
const (
	Producer MemberRole = "producer"
	Consumer MemberRole = "consumer"
)

// MemberSpec says how a new member of a channel takes part in the channel.
type MemberSpec struct {
	Role MemberRole
	// If Oldest is true, a new consumer of a broadcast begins with the oldest frame that the channel keeps, not with the newest frame.
	Oldest bool
	// Full says what happens when the broadcast is full because of this consumer. If Full is empty, the policy of the channel applies.
	Full mempool.FullPolicy
}

// Member is what a session needs to take part in a channel.
type Member struct {
	// Slot is the member's index in the roster. ID is a number that no other member of the channel has or gets later.
	Slot int
	ID   uint64
	// Export has three files: the roster, the sequencer, and the member's own file. The service closes these files, so the caller must not
	// close them.
	Export mempool.Export
}

// MemberCame gives a session the file of a new member of a channel. If the new member is a producer, the session's consumers in the channel
// need this file. If the new member is a consumer, the session's producers need it. The service closes the file when it frees the new
// member's slot.
type MemberCame struct {
	Channel uint64
	Role    MemberRole
	Slot    int
	Member  uint64
	File    *os.File
}

func (MemberCame) notice() {}

// JoinChannel makes a new member of a channel. The session's process must then map the member's files and call [Session.EnterChannel]. If
// the session's timeline is already sealed, the member's fences belong to this timeline. Otherwise the member has no fences.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrInvalid], [mempool.ErrDenied], [mempool.ErrLimit], [mempool.ErrOutOfMemory],
// [mempool.ErrClosed] for a channel that is closed; a consumer can join a closed queue as long as not all of its frames are acknowledged.
func (s *Session) JoinChannel(channel uint64, spec MemberSpec) (Member, error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	ch, err := s.anyChannel(channel)
	if err == nil && ch.closed && (!ch.drains() || spec.Role != Consumer) {
		err = ch.failed(shmchannel.ErrClosed)
	}
	if err != nil {
		return Member{}, err
	}
	how, err := s.mayJoin(ch, spec)
	if err != nil {
		return Member{}, err
	}
	m := &member{channel: ch, session: s, full: cmp.Or(spec.Full, ch.info.Full)}
	if t := s.timeline; t != nil && t.sealed {
		m.timeline, how.Timeline = t, t.id
	}
	m.Member, err = ch.host.Add(how)
	if how.Role == shmchannel.ProducerRole && errors.Is(err, shmchannel.ErrNoSlot) && ch.host.GiveUp() {
		ch.tidy() // otherwise dead producers would keep the slots until other producers publish, and these cannot join
		m.Member, err = ch.host.Add(how)
	}
	if err != nil {
		return Member{}, ch.failed(err)
	}
	if m.timeline != nil {
		m.timeline.leases++
		m.timeline.unknown = true
	}
	s.noteUse()
	ch.members[m.ID], ch.last = m, m.ID
	s.members[m] = struct{}{}
	svc.members++
	if m.role() == Producer {
		ch.pool.produce(s, +1)
	}
	files := []*os.File{ch.host.RosterFile(), ch.host.SequencerFile(), m.File()}
	return Member{Slot: m.Slot, ID: m.ID, Export: mempool.Export{Files: files}}, nil
}

// mayJoin checks a session's request to join, and translates the spec for package shmchannel. The caller holds Service.mu.
func (s *Session) mayJoin(ch *channel, spec MemberSpec) (shmchannel.MemberSpec, error) {
	how := shmchannel.MemberSpec{PID: uint32(s.rec.Peer.PID), Oldest: spec.Oldest}
	name := ch.info.Name
	switch {
	case s.notify == nil:
		return how, situation.Of(mempool.ErrInvalid, "session %d gets no notices, and cannot join channel %q",
			s.rec.ID, name)
	case spec.Role == Consumer && ch.info.Mode == mempool.WorkQueue && spec.Full != "":
		return how, situation.Of(mempool.ErrInvalid, "channel %q is a queue, which has one policy for all: a consumer cannot choose its own", name)
	case spec.Role == Consumer:
		how.Role = shmchannel.ConsumerRole
	case spec.Role != Producer:
		return how, situation.Of(mempool.ErrInvalid, "unknown role %q of a member (known: %s, %s)", string(spec.Role), Producer, Consumer)
	case spec.Oldest || spec.Full != "":
		return how, situation.Of(mempool.ErrInvalid, "full and oldest are for consumers, and the member is a producer: leave them out")
	}
	policy := cmp.Or(spec.Full, ch.info.Full)
	if err := policy.Validate(); err != nil {
		return how, err
	}
	how.Policy = hostPolicies[policy]
	return how, s.mayTakePart()
}

// mayTakePart says whether the session may have one more member of a channel. The caller holds Service.mu.
func (s *Session) mayTakePart() error {
	if have, most := s.svc.members, s.svc.ledger.Limits.Members; have >= most {
		return &LimitError{Limit: "members", Max: most, Who: "the service", What: "members of channels", Have: have, Advice: "wait until some have left"}
	}
	if n := len(s.members); n >= mempool.MaxMembers {
		return situation.Of(mempool.ErrLimit, "session %d has %d members of channels, which is the limit: leave some channels, or drop "+
			"arrays of closed subscriptions, or connect once more", s.rec.ID, n)
	}
	return nil
}

// EnterChannel activates a member. The member's process must have mapped the member's files before. EnterChannel first announces the new
// member to all sessions that have members of the other role. It then returns the members of the other role, including producers that left
// but whose frames consumers still need. The caller must send the files of the returned members to the session before it answers the
// session's request.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrInvalid] if the member has entered before, or if the client itself has sealed the member's
// file, [mempool.ErrClosed].
func (s *Session) EnterChannel(channel, id uint64) ([]MemberCame, error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	m, err := s.member(channel, id)
	if err != nil {
		return nil, err
	}
	ch := m.channel
	switch {
	case m.left:
		return nil, situation.Of(mempool.ErrClosed, "member %d of channel %q has left", id, ch.info.Name)
	case m.entered:
		return nil, situation.Of(mempool.ErrInvalid, "member %d of channel %q has entered before", id, ch.info.Name)
	case ch.closed && (m.role() == Producer || ch.info.Mode != mempool.WorkQueue):
		return nil, ch.failed(shmchannel.ErrClosed)
	}
	others := ch.introduce(m)
	m.entered = true
	if err := ch.host.Join(m.Member); err != nil {
		m.entered = false
		err = ch.failed(err)
		ch.tidy()
		return nil, err
	}
	return others, nil
}

// introduce announces a new member to the sessions of the members of the other role, and returns these members. The caller holds
// Service.mu.
func (ch *channel) introduce(m *member) (others []MemberCame) {
	told := make(map[*Session]struct{})
	role := shmchannel.ConsumerRole
	if m.role() == Consumer {
		role = shmchannel.ProducerRole
	}
	for _, other := range ch.host.Members(nil, role) {
		o := ch.members[other.ID]
		if !o.entered {
			continue
		}
		others = append(others, o.came())
		if o.timeline != nil {
			o.timeline.shown[m.session.rec] = struct{}{}
		}
		if _, again := told[o.session]; again || o.session.rec.Ended {
			continue
		}
		told[o.session] = struct{}{}
		if m.timeline != nil {
			m.timeline.shown[o.session.rec] = struct{}{}
		}
		if o.session != m.session {
			o.session.tell(m.came())
		}
	}
	if _, own := told[m.session]; own {
		others = append(others, m.came())
	}
	return others
}
