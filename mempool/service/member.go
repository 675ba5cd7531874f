package service

import (
	"maps"
	"slices"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/journal"
)

// member is the service's state of a member of a channel. Service.mu guards members.
type member struct {
	*shmchannel.Member
	channel  *channel
	session  *Session
	timeline *timeline // nil if the member writes no fences
	entered  bool
	left     bool
	said     bool // the member left by its own request
	behind   journal.Lag
	full     mempool.FullPolicy // what happens when this consumer is slow
}

func (m *member) role() MemberRole {
	if m.Role == shmchannel.ProducerRole {
		return Producer
	}
	return Consumer
}

func (m *member) came() MemberCame {
	return MemberCame{Channel: m.channel.info.ID, Role: m.role(), Slot: m.Slot, Member: m.ID, File: m.File()}
}

// member finds one of the session's own members. The caller holds Service.mu.
func (s *Session) member(channel, id uint64) (*member, error) {
	ch, err := s.anyChannel(channel)
	if err != nil {
		return nil, err
	}
	m := ch.members[id]
	switch {
	case m == nil && (id == 0 || id > ch.last):
		return nil, situation.Of(mempool.ErrNotFound, "channel %q has no member %d", ch.info.Name, id)
	case m == nil || m.session != s:
		return nil, situation.Of(mempool.ErrClosed, "session %d has no member %d in channel %q: it has left, or it is another session's", s.rec.ID, id,
			ch.info.Name)
	}
	return m, nil
}

// LeaveChannel removes a member from its channel. Before a consumer calls LeaveChannel, the consumer must store in the channel's shared
// memory that it has left. When the last producer of the session in this channel leaves, the service ends the session's write leases on
// buffers that the channel or its consumers still need. The service keeps these buffers until nothing needs them.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrClosed]; [mempool.ErrBusy] for a producer if a consumer takes or releases a frame at that
// moment, because the service then does not know which buffers the channel needs.
func (s *Session) LeaveChannel(channel, id uint64) error {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	m, err := s.member(channel, id)
	if err != nil || m.left {
		return err
	}
	if m.role() == Producer {
		return m.leaveProducer()
	}
	m.leave(true)
	m.channel.tidy()
	return nil
}

// leaveProducer does the same as LeaveChannel for a producer. The caller holds Service.mu.
func (m *member) leaveProducer() error {
	ch := m.channel
	var producers []*member
	last := true
	for own := range m.session.members {
		if own.channel != ch || own.role() != Producer || !own.entered {
			continue
		}
		producers = append(producers, own)
		last = last && (own == m || own.left)
	}
	if !last {
		m.leave(true)
		ch.tidy()
		return nil
	}
	lent := lending{ch: ch.look(producers)} // what the channel needs now: these producers publish no more frames
	done, ok := ch.consumersDone()          // fences for the blocks that the channel does not need any more
	if lent[ch].unsure() || !ok {
		return situation.Of(mempool.ErrBusy, "a consumer of channel %q takes or releases a frame at this moment; try again", ch.info.Name)
	}
	m.leave(true)
	for _, l := range slices.Collect(maps.Values(m.session.rec.Leases)) {
		switch b := l.Buffer; {
		case !l.Write || b.Block.Pool != ch.pool.rec:
		case lent.needs(b.Block):
			lent.keep(l)
			m.session.endLease(l, false, nil)
		default:
			b.Block.Fences = ch.pool.svc.more(b.Block.Fences, done)
		}
	}
	ch.tidy()
	return nil
}

// leave removes the member. The argument `said` is true if the member itself asked to leave. The caller holds Service.mu.
func (m *member) leave(said bool) {
	if m.left {
		return
	}
	m.left, m.said = true, said
	if m.role() == Producer {
		m.channel.pool.produce(m.session, -1)
	}
	leave := m.channel.host.Expel
	if said {
		leave = m.channel.host.Leave
	}
	m.channel.logFailed("a member of a channel could not be taken out", leave(m.Member))
	m.promise()
}

// forget removes a member that has no slot any more from the service's state. The caller holds Service.mu.
func (m *member) forget() {
	s := m.session
	if !m.left && m.role() == Producer {
		m.channel.pool.produce(s, -1)
	}
	m.left = true
	delete(m.channel.members, m.ID)
	delete(s.members, m)
	s.svc.members--
	if m.timeline != nil {
		m.timeline.dropReferenceLocked()
	}
	if s.swept != nil && !s.consumes() {
		close(s.swept)
		s.swept = nil
	}
}

// consumes says whether a consumer of the session has a slot: the session's process may then use frames. The caller holds Service.mu.
func (s *Session) consumes() bool {
	for m := range s.members {
		if m.role() == Consumer {
			return true
		}
	}
	return false
}

// DoubtFrame notes as an event that a consumer of the session has found a frame whose record contradicts itself.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrInvalid] for a member that is no consumer, [mempool.ErrClosed].
func (s *Session) DoubtFrame(channel, id, number uint64) error {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	m, err := s.member(channel, id)
	if err != nil {
		return err
	}
	ch := m.channel
	if m.role() != Consumer {
		return situation.Of(mempool.ErrInvalid, "member %d of channel %q is no consumer", id, ch.info.Name)
	}
	if count, now := ch.doubts.Tell(); now {
		e := s.about(mempool.FrameDoubted, "%s found a frame that contradicts itself, number %d of channel %q: a producer wrote what it must not", s.rec.Who(), number,
			ch.info.Name)
		e.Count = count
		ch.note(e)
	}
	return nil
}
