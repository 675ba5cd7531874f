package shmchannel

import (
	"errors"
	"math"
)

// Join activates a member after the member has opened its own file. From then on nobody but the member can write the file.
//
// Errors: [ErrInvalid] for a member that has joined or left, [ErrFile] for one that has sealed its file itself, [ErrClosed], [ErrCorrupt];
// the system's.
func (h *Host) Join(m *Member) error {
	switch {
	case m.joined || m.left:
		return invalid("member %d has joined already", m.ID)
	case h.roster.state.Load() != channelOpen:
		return ErrClosed
	}
	if err := sealForGood(m.file); err != nil {
		return err
	}
	m.joined = true
	s := h.slot(m)
	s.policy.Store(uint32(m.policy))
	s.timeline.Store(m.Timeline)
	s.pid.Store(m.PID)
	s.id.Store(m.ID)
	var begin func(tail)
	if m.Role == ConsumerRole && h.mode == Broadcast {
		begin = func(t tail) {
			start := max(t.number(), 1)
			if m.oldest {
				start = h.oldest(t.number())
			}
			m.cursor.next.Store(start)
			m.cursor.floor.Store(start)
			s.start.Store(start)
		}
		begin(h.sequencer.loadTail())
	}
	s.state.Store(slotActive)
	_, err := h.change(begin)
	return err
}

// Leave takes a member out that has said that it leaves. What it has in hand stays its own, as long as its process runs. Its slot
// stays taken until [Host.Sweep] finds that nothing needs it.
//
// Errors: [ErrCorrupt].
func (h *Host) Leave(m *Member) error {
	m.said = true
	return h.Expel(m)
}

// Expel takes a member out whose session has ended. Its process may run on, and use what it has in hand: a consumer's slot stays taken
// until it is [Host.Gone].
//
// Errors: [ErrCorrupt].
func (h *Host) Expel(m *Member) error {
	if m.left {
		return nil
	}
	m.left = true
	if !m.joined {
		return nil
	}
	h.slot(m).state.Store(slotLeft)
	if m.Role == ProducerRole {
		h.sequencer.waiting[m.Slot].Store(0)
	}
	_, err := h.change(nil)
	return err
}

// Gone says that the process of a member does not run any more. The member leaves, if it has not. The frames of a queue that it
// had claimed go to others, and what it held is held no more.
//
// Errors: [ErrCorrupt].
func (h *Host) Gone(m *Member) error {
	err := h.Expel(m)
	m.gone = true
	if m.Role != ConsumerRole || h.mode != Queue || !m.joined {
		return err
	}
	for i := range h.sequencer.claims {
		w := &h.sequencer.claims[i]
		if c := claim(w.Load()); c.tag() == tagConsumer+uint64(m.Slot) {
			w.CompareAndSwap(uint64(c), uint64(newClaim(c.number(), tagReturned)))
		}
	}
	h.sequencer.published.advance()
	return err
}

// Sweep frees the slots of members that left and that nothing needs any more, and appends those members: their files can be
// forgotten. A consumer's slot is needed while its process runs, unless it has said that it leaves, holds nothing, has no claim, and every
// fence of its work on frames is reached. A producer's slot is needed while a frame of it is kept.
//
// Errors: [ErrCorrupt]; the system's.
func (h *Host) Sweep(to []*Member, reached func(Fence) bool) ([]*Member, error) {
	from := len(to)
	for i, m := range h.consumers {
		if m != nil && m.left && (m.gone || !m.joined || m.said && !h.consumerNeeded(m, reached)) {
			h.consumers[i] = nil
			to = append(to, m)
		}
	}
	for i, m := range h.producers {
		if m != nil && m.left && (!m.joined || len(h.kept(m)) == 0) {
			h.producers[i] = nil
			to = append(to, m)
		}
	}
	var err error
	changed := false
	for _, m := range to[from:] {
		if m.joined {
			s := h.slot(m)
			s.state.Store(slotFree)
			s.id.Store(0)
			changed = true
		}
		err = errors.Join(err, m.free())
	}
	if changed {
		_, changeErr := h.change(nil)
		err = errors.Join(err, changeErr)
	}
	return to, err
}

// consumerNeeded says whether a consumer that left still has something to do with frames. Its cursor may say anything.
func (h *Host) consumerNeeded(m *Member, reached func(Fence) bool) bool {
	c := m.cursor
	if h.mode == Broadcast && m.policy.blocks() && c.floor.Load() < c.next.Load() {
		return true
	}
	for i := range c.used() {
		if c.holds[i].number.Load() != 0 {
			return true
		}
	}
	for i := range c.done {
		_, t, ok := c.done[i].load()
		t.Timeline = m.Timeline
		if !ok || t.Value != 0 && m.Timeline != 0 && !reached(t) {
			return true
		}
	}
	if h.mode == Queue {
		for i := range h.sequencer.claims {
			if claim(h.sequencer.claims[i].Load()).tag() == tagConsumer+uint64(m.Slot) {
				return true
			}
		}
	}
	return false
}

// kept are the numbers of a producer's frames that consumers may still take.
func (h *Host) kept(m *Member) []uint64 {
	if h.roster.state.Load() == channelDestroyed || m.track == nil {
		return nil
	}
	t := h.sequencer.loadTail()
	var numbers []uint64
	from := h.oldest(t.number())
	if h.mode == Queue {
		from = 1
		if t.number() >= h.slots {
			from = t.number() - h.slots + 1
		}
	}
	if h.roster.state.Load() == channelClosed && h.mode == Broadcast {
		from = max(from, h.ahead())
	}
	for n := from; n <= t.number(); n++ {
		number := n
		if h.mode == Queue {
			r := h.sequencer.resident(n, t)
			if r.done() {
				continue
			}
			number = r.number
		}
		if slot, how := h.sequencer.producerOf(number, t); how == published && slot == m.Slot {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// ahead is the smallest number that a consumer which takes part has not released.
func (h *Host) ahead() uint64 {
	n := uint64(math.MaxUint64)
	for _, c := range h.consumers {
		if c != nil && c.joined && !c.left {
			n = min(n, c.cursor.floor.Load())
		}
	}
	return n
}
