package shmchannel

import (
	"errors"
	"os"
)

// AdoptedMember is a member of a channel of a host whose process is gone.
type AdoptedMember struct {
	MemberSpec
	ID             uint64
	Seat           int
	File           *os.File
	Entered        bool
	Reserved       bool
	Left, SaidLeft bool
}

// AdoptHost takes over the channel of a host whose process is gone: its files, the greatest id of a member so far, the first frame that was not
// given up (see [Host.First]), whether it was closed, and the members that have a seat. The roster may have a change that the host did not
// complete, and of which nothing else is known: AdoptHost completes the change, or the caller repeats it. AdoptHost owns the files, also if it fails.
//
// Errors: [ErrInvalid], [ErrFile], [ErrCorrupt]; errors of the system.
func AdoptHost(spec Spec, rosterFile, sequencerFile *os.File, lastID, first uint64, closed bool, members []AdoptedMember) (_ *Host, all []*Member, err error) {
	h := &Host{channel: &channel{geometry: geometryFor(spec.Capacity), mode: spec.Mode, policy: spec.Policy, delivers: uint64(spec.MaxDeliveries)},
		rosterFile: rosterFile, sequencerFile: sequencerFile, lastID: lastID, first: first}
	for _, one := range members {
		all = append(all, &Member{Role: one.Role, Peer: Peer{Seat: one.Seat, ID: one.ID, Timeline: one.Timeline, PID: one.PID}, policy: one.Policy, oldest: one.Oldest,
			file: one.File, reserved: one.Reserved, left: one.Left, said: one.SaidLeft})
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Free())
		}
	}()
	if err := errors.Join(spec.Validate(), h.begin(false)); err != nil {
		return nil, nil, err
	}
	for i, m := range all {
		seats := h.of(m.Role)
		if m.Seat < 0 || m.Seat >= len(seats) || seats[m.Seat] != nil {
			return nil, nil, invalid("two members have seat %d, or there is none", m.Seat)
		}
		seats[m.Seat] = m
		if err := m.mapFile(h.geometry); err != nil {
			return nil, nil, err
		}
		s := h.roster.seat(m)
		m.joined = (members[i].Entered || m.reserved) && s.id.Load() == m.ID && s.state.Load() != seatFree
		m.start = s.start.Load()
	}
	if h.roster.state.Load() == channelClosing || closed && h.roster.state.Load() == channelOpen {
		h.roster.state.Store(channelOpen)
		return h, all, h.Close()
	}
	_, err = h.change() // members wake and look again
	return h, all, err
}

// First returns the number of the first frame that was not given up: see [Host.GiveUp].
func (h *Host) First() uint64 { return h.first }

// Destroyed says whether the channel has ended.
func (h *Host) Destroyed() bool { return h.roster.state.Load() == channelDestroyed }
