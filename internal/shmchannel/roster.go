package shmchannel

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
)

const rosterMagic = "PBROST01"

// These are the states of a channel.
const (
	channelOpen = iota
	channelClosing
	channelClosed
	channelDestroyed
)

// These are the states of a seat.
const (
	seatFree = iota
	seatActive
	seatLeft
)

// seat is a member's entry in the roster.
type seat struct {
	state    atomic.Uint32
	policy   atomic.Uint32
	id       atomic.Uint64
	timeline atomic.Uint64
	start    atomic.Uint64
	pid      atomic.Uint32
	ending   atomic.Uint32 // how a producer left; it stays when the seat becomes free. 0: it takes part, or the seat was never used
	_        [24]byte
}

func (s *seat) peer(i int) Peer {
	return Peer{Seat: i, ID: s.id.Load(), Timeline: s.timeline.Load(), PID: s.pid.Load()}
}

// active reports whether the member with this id has the seat and takes part.
func (s *seat) active(id uint64) bool { return s.state.Load() == seatActive && s.id.Load() == id }

// roster lists the members of the channel. Only the host writes it.
type roster struct {
	magic     [8]byte
	version   atomic.Uint64
	state     atomic.Uint64
	end       atomic.Uint64
	mode      atomic.Uint64
	capacity  atomic.Uint64
	slots     atomic.Uint64
	policy    atomic.Uint64
	delivers  atomic.Uint64 // see [Spec.MaxDeliveries]
	abandoned atomic.Uint64 // when the last producer left, in nanoseconds since 1970; 0: one takes part, or none has joined yet
	_         [4096 - 80]byte
	producers [64]seat // the last seat is never used: in a tail, the number of this seat means that no frame was published
	consumers [MaxConsumers]seat
}

// channel is a member's mappings of the channel's files, and a copy of the roster's fields that never change.
type channel struct {
	geometry
	mode     Mode
	policy   Policy
	delivers uint64

	roster    *roster
	sequencer sequencer

	rosterRegion, sequencerRegion region
}

// openChannel maps the files of a channel for a member.
//
// Errors: [ErrFile]; errors of the system.
func openChannel(rosterFile, sequencerFile *os.File) (*channel, error) {
	mem, err := mapFile(rosterFile, RosterBytes, false)
	if err != nil {
		return nil, err
	}
	r := at[roster](mem, 0)
	c := &channel{
		geometry: geometry{r.capacity.Load(), r.slots.Load()},
		mode:     Mode(r.mode.Load()), policy: Policy(r.policy.Load()), delivers: r.delivers.Load(),
		roster: r, rosterRegion: mem,
	}
	switch {
	case string(r.magic[:]) != rosterMagic:
		err = fmt.Errorf("%w: a roster begins with %q, this file begins with %q", ErrFile, rosterMagic, r.magic[:])
	case !c.valid() || c.mode > Queue || r.policy.Load() > uint64(Latest) || c.delivers > MaxDelivery:
		err = fmt.Errorf("%w: the roster has a value out of range: capacity %d, %d slots, mode %d, policy %d, %d deliveries", ErrFile, c.capacity, c.slots,
			uint64(c.mode), r.policy.Load(), c.delivers)
	}
	if err == nil {
		err = c.mapSequencer(sequencerFile)
	}
	if err != nil {
		_ = mem.unmap() // the first error explains more than an error of unmap
		return nil, err
	}
	return c, nil
}

func (c *channel) mapSequencer(f *os.File) error {
	mem, err := mapFile(f, c.sequencerBytes(), true)
	if err != nil {
		return err
	}
	c.sequencerRegion = mem
	c.sequencer = newSequencer(mem, c.geometry)
	return nil
}

func (c *channel) unmap() error {
	return errors.Join(c.rosterRegion.unmap(), c.sequencerRegion.unmap())
}
