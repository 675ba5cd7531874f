package shmchannel

import (
	"errors"
	"fmt"
	"os"
)

// Host does the work of the service for a channel. It makes the channel's files and decides which members take part. Only one goroutine at
// a time may call the methods of a Host. No method waits.
type Host struct {
	*channel
	rosterFile, sequencerFile *os.File
	rosterReader              *os.File // the roster's file, for members

	members
	lastID uint64

	first   uint64 // a broadcast has given up the frames before this number; see GiveUp
	newest  uint64 // the greatest frame number that the host has seen
	dropped uint64 // see Dropped
}

// Member is what the host knows of one producer or one consumer.
type Member struct {
	Role Role
	Peer
	policy Policy
	oldest bool

	file   *os.File
	reader *os.File // the same, for the members of the other role
	track  *track
	cursor *cursor
	joined bool
	// reserved says that Reserve has activated the member and Join has not been called yet.
	reserved bool
	left     bool
	said     bool // the member said that it leaves, so it takes no frame any more
	gone     bool // the member's process has ended

	start  uint64 // the first number that this consumer of a broadcast may take
	missed uint64 // frames that this consumer missed and that Host.dropped already counts
}

// NewHost makes the files of a channel: of empty memfds, which it then owns, or of new ones if they are nil.
//
// Errors: [ErrInvalid]; errors of the system.
func NewHost(spec Spec, roster, sequencer *os.File) (*Host, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	l := geometryFor(spec.Capacity)
	rosterFile, err := makeFile(roster, RosterName, RosterBytes)
	if err != nil {
		return nil, err
	}
	sequencerFile, err := makeFile(sequencer, SequencerName, l.sequencerBytes())
	if err != nil {
		return nil, errors.Join(err, rosterFile.Close())
	}
	h := &Host{
		channel:    &channel{geometry: l, mode: spec.Mode, policy: spec.Policy, delivers: uint64(spec.MaxDeliveries)},
		rosterFile: rosterFile, sequencerFile: sequencerFile,
	}
	if err := h.begin(true); err != nil {
		return nil, errors.Join(err, h.Free())
	}
	return h, nil
}

// begin maps the files, and writes the fields of the roster that never change.
func (h *Host) begin(anew bool) (err error) {
	if h.rosterReader, err = ReadOnly(h.rosterFile); err != nil {
		return err
	}
	if h.rosterRegion, err = mapFile(h.rosterFile, RosterBytes, true); err != nil {
		return err
	}
	r := at[roster](h.rosterRegion, 0)
	h.roster = r
	if !anew {
		return h.mapSequencer(h.sequencerFile)
	}
	copy(r.magic[:], rosterMagic)
	r.mode.Store(uint64(h.mode))
	r.capacity.Store(h.capacity)
	r.slots.Store(h.slots)
	r.policy.Store(uint64(h.policy))
	r.delivers.Store(h.delivers)
	return h.mapSequencer(h.sequencerFile)
}

// RosterFile returns the roster's file, which every member needs. The host owns the file.
func (h *Host) RosterFile() *os.File { return h.rosterReader }

// SequencerFile returns the sequencer's file, which every member needs. The host owns the file.
func (h *Host) SequencerFile() *os.File { return h.sequencerFile }

// MemberSpec describes a new member.
type MemberSpec struct {
	Role     Role
	Timeline uint64 // 0: the member has no timeline
	PID      uint32 // process id; only shown to people
	// Policy is the policy of a consumer of a broadcast.
	Policy Policy
	// Oldest lets a consumer of a broadcast begin with the oldest frame that the channel keeps. If Oldest is false, the consumer begins with
	// the newest frame.
	Oldest bool
	// Empty is a memfd of which Add makes the member's file, and which the host then owns. If it is nil, Add makes a new one.
	Empty *os.File
}

// Add makes the file of a new member and reserves a seat for the member. The caller then gives this file to the new member and to the
// members of the other role, and gives the new member the files of the members of the other role (see [Host.Members]). When all these
// members have the files and the new member has opened the channel, the caller calls [Host.Join].
//
// Errors: [ErrInvalid], [ErrClosed], [ErrNoSeat]; errors of the system.
func (h *Host) Add(spec MemberSpec) (*Member, error) {
	if spec.Policy > Latest {
		return nil, invalid("unknown policy %d", spec.Policy)
	}
	if !h.admits(spec.Role) {
		return nil, ErrClosed
	}
	m := &Member{Role: spec.Role, Peer: Peer{Timeline: spec.Timeline, PID: spec.PID}, policy: spec.Policy, oldest: spec.Oldest}
	place, err := h.place(m)
	if err != nil {
		return nil, err
	}
	m.ID = h.lastID + 1
	if err := m.makeFile(spec.Empty, h.geometry); err != nil {
		return nil, errors.Join(err, m.free())
	}
	h.lastID = m.ID
	*place = m
	return m, nil
}

// admits reports whether a new member may join: any member while the channel is open, and a consumer of a queue also after it was closed.
func (c *channel) admits(role Role) bool {
	state := c.roster.state.Load()
	return state == channelOpen || state == channelClosed && c.mode == Queue && role == ConsumerRole
}

// members are the members by their seats. A producer that left keeps its seat while the channel keeps its frames.
type members struct {
	producers [MaxProducers]*Member
	consumers [MaxConsumers]*Member
}

// of returns the members of a role by their seats.
func (ms *members) of(role Role) []*Member {
	if role == ProducerRole {
		return ms.producers[:]
	}
	return ms.consumers[:]
}

// place finds a free seat for a new member.
func (ms *members) place(m *Member) (**Member, error) {
	seats := ms.of(m.Role)
	for i := range seats {
		if seats[i] == nil {
			m.Seat = i
			return &seats[i], nil
		}
	}
	return nil, fmt.Errorf("%w: the channel has %d %ss, which is the limit; a member that left counts until its frames are "+
		"neither kept nor in hand", ErrNoSeat, len(seats), m.Role)
}

func (m *Member) makeFile(empty *os.File, l geometry) (err error) {
	if m.Role == ConsumerRole {
		if m.file, err = makeFile(empty, CursorName, l.cursorBytes()); err != nil {
			return err
		}
		return m.mapFile(l)
	}
	if m.file, err = makeFile(empty, TrackName, l.trackBytes()); err != nil {
		return err
	}
	head, err := mapFile(m.file, l.trackBytes(), true)
	if err != nil {
		return err
	}
	writeTrackHead(head, m.ID)
	if err := head.unmap(); err != nil {
		return err
	}
	return m.mapFile(l)
}

// mapFile maps the member's file.
func (m *Member) mapFile(l geometry) (err error) {
	if m.reader, err = ReadOnly(m.file); err != nil {
		return err
	}
	if m.Role == ConsumerRole {
		m.cursor, err = mapCursor(m.file, l, m.ID, true)
	} else {
		m.track, err = mapTrack(m.file, l, m.ID, false)
	}
	return err
}

// File returns the member's file, which the member maps for writing. The host owns the file.
func (m *Member) File() *os.File { return m.file }

// Reader returns the member's file for the members of the other role, which can only read it. The host owns the file.
func (m *Member) Reader() *os.File { return m.reader }

// free unmaps and closes the host's end of the member's file.
func (m *Member) free() error {
	var err error
	if m.track != nil {
		err = m.track.unmap()
	}
	if m.cursor != nil {
		err = errors.Join(err, m.cursor.unmap())
	}
	if m.file != nil {
		err = errors.Join(err, m.file.Close())
	}
	if m.reader != nil {
		err = errors.Join(err, m.reader.Close())
	}
	m.track, m.cursor, m.file, m.reader = nil, nil, nil, nil
	return err
}

// seat returns the member's seat in the roster.
func (r *roster) seat(m *Member) *seat {
	if m.Role == ProducerRole {
		return &r.producers[m.Seat]
	}
	return &r.consumers[m.Seat]
}

// Members appends the members of a role to the slice `to`, including members that left and still have a seat. It returns the new slice.
func (ms *members) Members(to []*Member, role Role) []*Member {
	for _, m := range ms.of(role) {
		if m != nil {
			to = append(to, m)
		}
	}
	return to
}

// change announces that the roster has changed. Each producer notices the change before it publishes the next frame. change also wakes all
// members that sleep. It returns the tail (the word of the sequencer with the number of the newest frame). Unless the channel is closed,
// the tail then contains the new version of the roster.
//
// Errors: [ErrCorrupt] if a member keeps changing the tail.
func (h *Host) change() (tail, error) {
	defer h.sequencer.published.advance()
	return h.announce(nil)
}

// announce does the same as change, but does not wake consumers. announce is enough when other consumers need not know of the change, for
// example when a consumer joined. If prepare is not nil, announce calls prepare before each try to change the tail, and passes to prepare
// the tail that announce has just loaded.
func (h *Host) announce(prepare func(tail)) (tail, error) {
	defer h.sequencer.freed.advance()
	v := h.roster.version.Load() + 1
	h.roster.version.Store(v)
	if h.roster.state.Load() >= channelClosed {
		// Nobody may publish any more, so the tail keeps its version. If each change stored a new version, the version in the tail would repeat
		// after 1024 changes. Then a producer that loaded the tail before the channel was closed could find the same tail again, and publish.
		return h.sequencer.loadTail(), nil
	}
	for range maxRounds {
		t := h.sequencer.loadTail()
		if prepare != nil {
			prepare(t)
		}
		next := newTail(t.number(), t.seat(), v)
		if h.sequencer.tail.CompareAndSwap(uint64(t), uint64(next)) {
			return next, nil
		}
	}
	return 0, corrupt("the tail moved %d times while the roster was to be changed", maxRounds)
}

// Published returns the number of the newest frame. The returned number never shrinks, even if members write nonsense.
func (h *Host) Published() uint64 {
	h.newest = max(h.newest, h.sequencer.loadTail().number())
	return h.newest
}

// Close closes the channel: no producer can publish any more. Consumers can still take the frames that were published before. Consumers of
// a queue can still join.
//
// Errors: [ErrCorrupt]. After this error, the caller can only destroy the channel.
func (h *Host) Close() error {
	if h.roster.state.Load() != channelOpen {
		return nil
	}
	h.roster.state.Store(channelClosing)
	t, err := h.change()
	if err != nil {
		return err
	}
	h.roster.end.Store(t.number())
	h.roster.state.Store(channelClosed)
	_, err = h.change()
	return err
}

// Destroy ends the channel at once. No consumer gets a frame any more.
func (h *Host) Destroy() {
	h.roster.state.Store(channelDestroyed)
	_, _ = h.change() // change fails only while the channel is open
}

// Free unmaps and closes the host's files. The host must not be used afterwards.
func (h *Host) Free() error {
	err := errors.Join(h.unmap(), h.rosterFile.Close(), h.rosterReader.Close(), h.sequencerFile.Close())
	for role := range 2 {
		for _, m := range h.Members(nil, Role(role)) {
			err = errors.Join(err, m.free())
		}
	}
	return err
}
