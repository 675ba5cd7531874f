package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/poolbridge/poolbridge/internal/typed"
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

// Channel is what is known of a named stream of buffers. The members write and read the frames in memory that they share.
type Channel struct {
	Info   mempool.ChannelIdentity
	Pool   *Pool  // if it was destroyed, it may be removed: the channel stays as long as it has consumers
	UID    uint32 // the user who made the channel
	Closed bool   // no producer publishes any more, and the name is free

	Members map[uint64]*Member // members that have a seat, by id
	// RosterFile and SequencerFile name the descriptors of the channel's memory for a successor of this process; 0: there are none.
	RosterFile, SequencerFile uint64
	First                     uint64 // the first frame that a broadcast has not given up
	LastMember                uint64 // the greatest id of a member so far
	// The keys of Retained are buffers of producers that have left: the buffers that the channel or a consumer may still need. The value of each
	// key is a list of the producers that may have published this buffer. A producer in the list may have no seat any more.
	Retained map[*Buffer][]*Member
	Alone    time.Time // since when a closed queue with frames has no consumer; zero: it has consumers, no frames, or is open
}

// Member is what is known of a producer or a consumer of a channel.
type Member struct {
	ID       uint64 // no other member of the channel has or gets this id
	Seat     int    // the member's index in the roster, among the members of its role
	Channel  *Channel
	Session  *Session // may be forgotten: a producer that left keeps its seat while the channel keeps its frames
	Role     MemberRole
	Full     mempool.FullPolicy // what happens when this consumer is slow
	Timeline *Timeline          // nil if the member writes no fences
	Oldest   bool               // see MemberSpec
	File     uint64             // names the descriptor of its memory for a successor of this process; 0: there is none
	Reserved bool               // the consumer takes part and has not entered
	Entered  bool
	Left     bool
	Said     bool // the member left by its own request
	retained int  // how many entries of Channel.Retained name the member
}

// channels is the table of the channels.
type channels struct {
	Channels Index[uint64, *Channel] // open channels, and closed ones that are not over
	// ChannelNames has the channels that are not closed.
	ChannelNames map[string]*Channel

	members int // how many members all channels have
}

// Setting is a setting of a thing that exists, and the one that a request asks for.
type Setting struct {
	Name       string
	Have, Want any
}

// Differences says in which settings a thing differs from what was asked for; "" if it does not.
func Differences(all []Setting) string {
	var differs []string
	for _, one := range all {
		if have, want := fmt.Sprint(one.Have), fmt.Sprint(one.Want); have != want {
			differs = append(differs, fmt.Sprintf("its %s is %s, not %s", one.Name, cmp.Or(have, "none"), cmp.Or(want, "none")))
		}
	}
	return strings.Join(differs, "; ")
}

// MayMakeChannel says whether a session may make a channel for buffers of the pool p. If a channel with the same spec exists, it returns
// that channel.
//
// Errors: [mempool.ErrExists], [mempool.ErrClosed] if the pool is being destroyed, [mempool.ErrLimit].
func (l *Ledger) MayMakeChannel(s *Session, spec mempool.ChannelSpec, p *Pool) (*Channel, error) {
	old, err := Claim(s, "channel", spec.Name, l.ChannelNames[spec.Name])
	switch have, most := l.Channels.Len(), l.Limits.Channels; {
	case err != nil:
		return nil, err
	case old != nil && old.Info.ChannelSpec != spec:
		return nil, typed.Errorf(mempool.ErrExists, "there is a channel %[1]q already, which differs from what was asked for: %[2]s; open it as it is (OpenChannel in Go and open_channel in Python), or close it first: poolsvc channel close %[1]s",
			spec.Name, Differences([]Setting{
				{"pool", old.Pool.Info.Name, p.Info.Name},
				{"mode", old.Info.Mode, spec.Mode},
				{"capacity", old.Info.Capacity, spec.Capacity},
				{"policy of a full channel", old.Info.Full, spec.Full},
				{"max_deliveries", old.Info.MaxDeliveries, spec.MaxDeliveries},
			}))
	case old != nil:
		return old, nil
	case p.Closing:
		return nil, p.Ending()
	case p.Channels >= mempool.MaxChannels:
		return nil, typed.Errorf(mempool.ErrLimit, "pool %q has %d channels, which is the limit", p.Info.Name, p.Channels)
	case have >= most:
		return nil, &LimitError{"channels", most, "the service", "channels", have, "close some"}
	}
	return nil, nil
}

// AddChannel makes a channel for buffers of the pool p. The argument `uid` is the user who makes the channel.
func (l *Ledger) AddChannel(spec mempool.ChannelSpec, p *Pool, uid uint32) *Channel {
	l.Last.Channel++
	ch := &Channel{Info: mempool.ChannelIdentity{ID: l.Last.Channel, ChannelSpec: spec}, Pool: p, UID: uid}
	l.putChannel(ch)
	l.Touch(ch)
	return ch
}

// putChannel adds a channel without members to the tables.
func (cs *channels) putChannel(ch *Channel) {
	ch.Members, ch.Retained = make(map[uint64]*Member), make(map[*Buffer][]*Member)
	cs.Channels.Set(ch.Info.ID, ch)
	if !ch.Closed {
		cs.ChannelNames[ch.Info.Name] = ch
	}
	ch.Pool.Channels++
}

// CloseChannel frees a channel's name. From then on, no producer can join the channel.
func (cs *channels) CloseChannel(ch *Channel) {
	if !ch.Closed { // otherwise another channel may have this name by now
		ch.Closed = true
		ch.Touch(ch)
		delete(cs.ChannelNames, ch.Info.Name)
	}
}

// RemoveChannel removes a closed channel without members.
func (cs *channels) RemoveChannel(ch *Channel) {
	cs.Channels.Remove(ch.Info.ID)
	ch.Pool.Channels--
	ch.Touch(ch)
	ch.Touch(ch.Pool)
}

// Touch does what [Ledger.Touch] does, for the channel or something that belongs to it.
func (ch *Channel) Touch(r record) { ch.Pool.ledger.Touch(r) }

// Channel finds an open or closed channel by id. The session must be allowed to use the channel.
//
// Errors: [mempool.ErrClosed], [mempool.ErrDenied].
func (cs *channels) Channel(s *Session, id uint64) (*Channel, error) {
	if err := s.Alive(); err != nil {
		return nil, err
	}
	ch := Find(s, cs.Channels.Get(id))
	switch {
	case ch == nil:
		return nil, typed.Errorf(mempool.ErrClosed, "there is no channel %d in a pool that user %d may use: it is closed, or it never was there", id, s.Peer.UID)
	case !ch.Pool.Access.Allows(s.Peer):
		return nil, ch.Pool.Denied(s.Peer)
	}
	return ch, nil
}

// MayClose says whether a session may close the channel.
//
// Errors: [mempool.ErrClosed] if it is closed already, [mempool.ErrDenied] for all users except the user who made the channel.
func (ch *Channel) MayClose(s *Session) error {
	if ch.Closed {
		return typed.Errorf(mempool.ErrClosed, "channel %q is closed", ch.Info.Name)
	}
	return ch.belongs(s)
}

func (ch *Channel) belongs(to *Session) error {
	if ch.UID != to.Peer.UID {
		return typed.Errorf(mempool.ErrDenied, "channel %q belongs to user %d", ch.Info.Name, ch.UID)
	}
	return nil
}

// MayDiscard says whether a session may end the queue with the frames that are left.
//
// Errors: [mempool.ErrInvalid] if it is open or a broadcast, [mempool.ErrDenied] for all users except the user who made the channel.
func (ch *Channel) MayDiscard(s *Session) error {
	if err := ch.belongs(s); err != nil {
		return err
	}
	switch {
	case ch.Info.Mode != mempool.WorkQueue:
		return typed.Errorf(mempool.ErrInvalid, "channel %q is a broadcast: only the frames of a closed queue can be discarded; a closed broadcast ends when its consumers have left", ch.Info.Name)
	case !ch.Closed:
		return typed.Errorf(mempool.ErrInvalid, "channel %q is open: close it first, and discard what its consumers leave", ch.Info.Name)
	}
	return nil
}

// MayJoin says whether a session may have a new member of the channel.
//
// Errors: [mempool.ErrInvalid], [mempool.ErrLimit].
func (l *Ledger) MayJoin(s *Session, ch *Channel, spec MemberSpec) error {
	switch {
	case spec.Role == Consumer && ch.Info.Mode == mempool.WorkQueue && spec.Full != "":
		return typed.Errorf(mempool.ErrInvalid, "channel %q is a queue, which has one policy for all: a consumer cannot choose its own", ch.Info.Name)
	case spec.Role != Consumer && spec.Role != Producer:
		return typed.Errorf(mempool.ErrInvalid, "unknown role %q of a member (known: %s, %s)", string(spec.Role), Producer, Consumer)
	case spec.Role == Producer && (spec.Oldest || spec.Full != ""):
		return typed.Errorf(mempool.ErrInvalid, "full and oldest are for consumers, and the member is a producer: leave them out")
	}
	if err := cmp.Or(spec.Full, ch.Info.Full).Validate(); err != nil {
		return err
	}
	if have, most := l.members, l.Limits.Members; have >= most {
		return &LimitError{"members", most, "the service", "members of channels", have, "wait until some have left"}
	}
	if n := len(s.Members); n >= mempool.MaxMembers {
		return typed.Errorf(mempool.ErrLimit, "session %d has %d members of channels, which is the limit: leave some channels, or drop "+
			"arrays of closed subscriptions, or connect once more", s.ID, n)
	}
	return nil
}

// AddMember makes a member of a channel that has got an id and a seat. If the session's timeline is sealed, the member's fences belong to
// this timeline. Otherwise the member has no fences.
func (l *Ledger) AddMember(ch *Channel, s *Session, spec MemberSpec, id uint64, seat int) *Member {
	m := &Member{ID: id, Seat: seat, Channel: ch, Session: s, Role: spec.Role, Full: cmp.Or(spec.Full, ch.Info.Full), Oldest: spec.Oldest, Timeline: s.SealedTimeline()}
	ch.LastMember = id
	if m.Timeline != nil {
		m.Timeline.Unknown = true
		l.Touch(m.Timeline)
	}
	l.putMember(m)
	l.Touch(ch)
	l.Touch(m)
	return m
}

// putMember adds a member to the tables, to its session and to its channel.
func (l *Ledger) putMember(m *Member) {
	m.Channel.Members[m.ID] = m
	if m.Session.Members == nil {
		m.Session.Members = make(map[*Member]struct{})
	}
	m.Session.Members[m] = struct{}{}
	l.members++
	m.Session.holders++
	if m.Timeline != nil {
		m.Timeline.references++
	}
	m.produce(+1)
}

// produce adds n to the number of producers that the member's session has in the pool, if the member is a producer that has not left.
func (m *Member) produce(n int) {
	if m.Role != Producer || m.Left {
		return
	}
	p := m.Channel.Pool
	if p.Producers == nil {
		p.Producers = make(map[*Session]int)
	}
	if p.Producers[m.Session] += n; p.Producers[m.Session] == 0 {
		delete(p.Producers, m.Session)
	}
}

// Leave notes that a member has left. The argument `said` is true if the member itself asked to leave. The member keeps its seat.
func (m *Member) Leave(said bool) {
	m.produce(-1)
	m.Left, m.Said = true, said
	m.Channel.Touch(m)
}

// RemoveMember removes a member that has no seat any more. If nobody can ask for the member's timeline any more, RemoveMember removes the
// timeline too, and returns it.
func (l *Ledger) RemoveMember(m *Member) *Timeline {
	m.produce(-1)
	m.Left = true
	delete(m.Channel.Members, m.ID)
	delete(m.Session.Members, m)
	l.members--
	m.unseat()
	if m.Timeline == nil {
		return nil
	}
	return l.dropReference(m.Timeline)
}

// unseat notes that the member has no seat, or that the channel retains one buffer of it less.
func (m *Member) unseat() {
	m.Channel.Touch(m)
	if m.retained == 0 && m.Channel.Members[m.ID] != m {
		m.Session.dropHolder()
	}
}

// Member finds a member of the session that has a seat, even if the member has left.
//
// Errors: those of Channel; [mempool.ErrNotFound] if the channel never had this id; [mempool.ErrClosed] if the member has no seat any more,
// or is another session's.
func (cs *channels) Member(s *Session, channel, id uint64) (*Member, error) {
	ch, err := cs.Channel(s, channel)
	if err != nil {
		return nil, err
	}
	m := ch.Members[id]
	switch {
	case m == nil && (id == 0 || id > ch.LastMember):
		return nil, typed.Errorf(mempool.ErrNotFound, "channel %q has no member %d", ch.Info.Name, id)
	case m == nil || m.Session != s:
		return nil, typed.Errorf(mempool.ErrClosed, "session %d has no member %d in channel %q: it has left, or it is another session's", s.ID, id, ch.Info.Name)
	}
	return m, nil
}

// MayEnter says whether a member has neither left its channel nor entered it before. The caller checks whether the channel is closed.
//
// Errors: [mempool.ErrClosed] if the member has left, [mempool.ErrInvalid] if it has entered before.
func (m *Member) MayEnter() error {
	switch {
	case m.Left:
		return typed.Errorf(mempool.ErrClosed, "member %d of channel %q has left", m.ID, m.Channel.Info.Name)
	case m.Entered:
		return typed.Errorf(mempool.ErrInvalid, "member %d of channel %q has entered before", m.ID, m.Channel.Info.Name)
	}
	return nil
}

// MembersOf returns the members of a role, ordered by seat.
func (ch *Channel) MembersOf(role MemberRole) (members []*Member) {
	for _, m := range ch.Members {
		if m.Role == role {
			members = append(members, m)
		}
	}
	slices.SortFunc(members, func(a, b *Member) int { return cmp.Compare(a.Seat, b.Seat) })
	return members
}

// Others returns the members of the other role that have entered.
func (m *Member) Others() []*Member {
	role := Consumer
	if m.Role == Consumer {
		role = Producer
	}
	return slices.DeleteFunc(m.Channel.MembersOf(role), func(o *Member) bool { return !o.Entered })
}

// Consumed says whether the channel has a consumer that may still take frames or use frames.
func (ch *Channel) Consumed() bool {
	for _, m := range ch.Members {
		if m.Role == Consumer && (m.Entered || m.Reserved) {
			return true
		}
	}
	return false
}

// Consumers counts the consumers that have entered and not left.
func (ch *Channel) Consumers() (n int) {
	for _, m := range ch.Members {
		if m.Role == Consumer && m.Entered && !m.Left {
			n++
		}
	}
	return n
}

// Leftovers counts the buffers that the channel retains, and the members that left and whose seats can become free without another request.
func (ch *Channel) Leftovers() (n int) {
	for _, m := range ch.Members {
		if m.Left && (m.Said || m.Role == Producer) {
			n++
		}
	}
	return n + len(ch.Retained)
}

// SortedMembers returns the session's members, ordered by channel.
func (s *Session) SortedMembers() []*Member {
	return slices.SortedFunc(maps.Keys(s.Members), func(a, b *Member) int {
		return cmp.Or(cmp.Compare(a.Channel.Info.ID, b.Channel.Info.ID), cmp.Compare(a.ID, b.ID))
	})
}

// Consumes says whether a consumer of the session has a seat: the session's process may then use frames.
func (s *Session) Consumes() bool {
	for m := range s.Members {
		if m.Role == Consumer {
			return true
		}
	}
	return false
}

// ConsumesFrom says whether the session has a consumer in the channel.
func (s *Session) ConsumesFrom(ch *Channel) bool {
	for m := range s.Members {
		if m.Channel == ch && m.Role == Consumer && m.Entered {
			return true
		}
	}
	return false
}

// Retain notes that the channel may need a buffer whose write lease is about to end. The argument `producers` has the producers that may have
// published the buffer.
func (ch *Channel) Retain(b *Buffer, producers []*Member) {
	if ch.Retained[b] == nil {
		b.Frames++
	}
	ch.Retained[b] = append(ch.Retained[b], producers...)
	for _, m := range producers {
		m.retained++
	}
	ch.Touch(retainedBy{ch, b})
	ch.Touch(b)
}

// Release notes that the channel needs a buffer no more. The result `lost` is true if no channel has had the buffer, although its writer
// was gone before the buffer was complete: the buffer has failed.
func (ch *Channel) Release(b *Buffer) (lost bool) {
	for _, m := range ch.Retained[b] {
		m.retained--
		m.unseat()
	}
	delete(ch.Retained, b)
	b.Frames--
	ch.Touch(retainedBy{ch, b})
	ch.Touch(b)
	if b.Doubted && b.Frames == 0 {
		b.Doubted, b.Failed, lost = false, true, true
	}
	return lost
}

// MapLent notes that a session maps a block that a consumer of the session has found in a channel, and returns the block.
//
// Errors: those of Channel, [mempool.ErrDenied] if the session has no consumer in the channel, [mempool.ErrNotFound] if no buffer of the
// channel's pool uses the block, [mempool.ErrLimit].
func (l *Ledger) MapLent(s *Session, channel, id uint64) (*Block, error) {
	ch, err := l.Channel(s, channel)
	if err != nil {
		return nil, err
	}
	if !s.ConsumesFrom(ch) {
		return nil, typed.Errorf(mempool.ErrDenied, "session %d is no consumer of channel %q", s.ID, ch.Info.Name)
	}
	b := l.Blocks.Get(id)
	if b == nil || b.Pool != ch.Pool || b.State != BlockLeased {
		return nil, typed.Errorf(mempool.ErrNotFound, "no buffer of pool %q uses block %d", ch.Pool.Info.Name, id)
	}
	if s.Mapped[id] == nil {
		if err := l.Limits.MayMap(s); err != nil {
			return nil, err
		}
		s.Map(b)
	}
	return b, nil
}

// VisibleTo says whether a session may see the channel.
func (ch *Channel) VisibleTo(s *Session) bool { return ch.Pool.VisibleTo(s) }
