package shmchannel

import (
	"errors"
	"iter"
	"math"
	"slices"
	"time"
)

// Join activates a member that has opened its own file.
//
// Errors: [ErrInvalid] if the member has joined or left already, [ErrClosed], [ErrCorrupt].
func (h *Host) Join(m *Member) error {
	switch {
	case m.joined && !m.reserved || m.left:
		return invalid("member %d has joined already", m.ID)
	case !m.reserved && !h.admits(m.Role):
		return ErrClosed
	}
	if m.reserved {
		m.reserved = false
		return nil
	}
	return h.activate(m)
}

// Reserve activates a consumer that has not opened its own file yet, so that the consumer gets every frame that is published afterwards. No
// other member may get the consumer's file before the caller calls [Host.Join]. Each producer waits, and publishes nothing, until it gets the
// file or the consumer leaves.
//
// Errors: [ErrInvalid] if the member is no consumer, or has joined or left already; [ErrCorrupt].
func (h *Host) Reserve(m *Member) error {
	if m.Role != ConsumerRole || m.joined || m.left {
		return invalid("member %d is no consumer that has not joined", m.ID)
	}
	m.reserved = true
	return h.activate(m)
}

// activate lets a member take part.
func (h *Host) activate(m *Member) error {
	m.joined = true
	s := h.roster.seat(m)
	s.policy.Store(uint32(m.policy))
	s.timeline.Store(m.Timeline)
	s.ending.Store(0) // before pid: a consumer must not see how another member left
	s.pid.Store(m.PID)
	s.id.Store(m.ID)
	var begin func(tail)
	if m.Role == ConsumerRole && h.mode == Broadcast {
		begin = func(t tail) {
			start := max(t.number(), 1)
			if m.oldest {
				start = h.oldest(t.number())
			}
			start = max(start, h.first)
			m.cursor.next.Store(start)
			m.cursor.floor.Store(start)
			s.start.Store(start)
			m.start = start
		}
		begin(h.sequencer.loadTail())
	}
	if m.Role == ConsumerRole {
		s.state.Store(seatActive)
		_, err := h.announce(begin)
		return err
	}
	h.roster.abandoned.Store(0)
	s.state.Store(seatActive)
	_, err := h.change()
	return err
}

// Leave removes a member that has told the service that it leaves. As long as the member's process runs, the member keeps the frames that
// it has in hand. The member's seat stays taken until [Host.Sweep] finds that nothing needs the seat any more.
//
// Errors: [ErrCorrupt].
func (h *Host) Leave(m *Member) error {
	m.said = true
	return h.Expel(m, Left)
}

// Expel removes a member whose session has ended. The member's process may still run and use the frames that the member has in hand. So a
// consumer's seat stays taken until the process has ended and the caller calls [Host.Gone]. Consumers can read how a producer left.
//
// Errors: [ErrCorrupt].
func (h *Host) Expel(m *Member, how Ending) error {
	if m.left {
		return nil
	}
	m.left = true
	if !m.joined {
		return nil
	}
	if m.reserved { // it has taken no frame, and no producer has its file
		m.joined, m.reserved = false, false
		h.roster.seat(m).state.Store(seatFree)
		h.roster.seat(m).id.Store(0)
		_, err := h.change()
		return err
	}
	h.roster.seat(m).ending.Store(uint32(how))
	h.roster.seat(m).state.Store(seatLeft)
	if m.Role == ProducerRole {
		h.sequencer.waiting[m.Seat].Store(0)
	}
	_, err := h.change()
	if m.Role == ProducerRole && !slices.ContainsFunc(h.producers[:], (*Member).takesPart) {
		h.roster.abandoned.Store(uint64(time.Now().UnixNano())) // after the change: the producer publishes nothing more
		h.sequencer.published.advance()
	}
	return err
}

func (m *Member) takesPart() bool { return m != nil && m.joined && !m.left }

// Gone tells the host that the process of a member has ended. If the member has not left yet, Gone removes it. The frames of a queue that
// the member had claimed go to other consumers. After that, the member's holds keep no blocks any more.
//
// Errors: [ErrCorrupt].
func (h *Host) Gone(m *Member) error {
	err := h.Expel(m, Lost)
	m.gone = true
	if m.Role != ConsumerRole || h.mode != Queue || !m.joined {
		return err
	}
	for i := range h.sequencer.claims {
		w := &h.sequencer.claims[i]
		if c := claim(w.Load()); c.tag() == tagConsumer+uint64(m.Seat) {
			w.CompareAndSwap(uint64(c), uint64(newClaim(c.number(), tagRequeued)))
		}
	}
	h.sequencer.published.advance()
	return err
}

// Sweep frees the seats of members that left, if nothing needs these seats any more. Sweep appends the members whose seats it frees to the
// slice `to`, and the caller can forget the files of these members. A consumer's seat is needed until the caller calls [Host.Gone]. If the
// caller has called [Host.Leave] for the consumer, the seat is needed only until the consumer has no frame in hand and no claim, and all
// fences of its work are reached. Sweep calls the function `reached` to find out whether a fence is reached. A producer's seat is needed
// while the channel keeps a frame of the producer; see [Host.GiveUp].
//
// Errors: [ErrCorrupt]; errors of the system.
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
		h.countMissed(m)
		if m.joined {
			s := h.roster.seat(m)
			s.state.Store(seatFree)
			s.id.Store(0)
			changed = true
		}
		err = errors.Join(err, m.free())
	}
	if changed {
		_, changeErr := h.change()
		err = errors.Join(err, changeErr)
	}
	return to, err
}

// consumerNeeded reports whether a consumer that left still has frames in hand, claims, or unfinished work. The consumer's cursor may
// contain nonsense.
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
			if claim(h.sequencer.claims[i].Load()).tag() == tagConsumer+uint64(m.Seat) {
				return true
			}
		}
	}
	return false
}

// kept returns the numbers of a producer's frames that the channel keeps: frames that consumers may still take, and frames of a queue that
// are not acknowledged.
func (h *Host) kept(m *Member) []uint64 {
	if m.track == nil {
		return nil
	}
	var numbers []uint64
	for number, seat := range h.frames() {
		if seat == m.Seat {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// frames yields the number of each frame that the channel keeps, and the seat of its producer.
func (h *Host) frames() iter.Seq2[uint64, int] {
	return func(yield func(uint64, int) bool) {
		if h.roster.state.Load() == channelDestroyed {
			return
		}
		t := h.sequencer.loadTail()
		from := max(h.oldest(t.number()), h.first)
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
			if seat, how := h.sequencer.producerOf(number, t); how == published && !yield(number, seat) {
				return
			}
		}
	}
}

// GiveUp makes a broadcast stop keeping its oldest frames, so that [Host.Sweep] can free the seat of a producer that left. GiveUp gives up
// as few frames as possible, and never a frame that an active consumer has not released. A consumer that joins later does not get the
// frames that were given up. GiveUp returns true if it gave up a frame.
func (h *Host) GiveUp() bool {
	if h.mode == Queue {
		return false
	}
	var last [MaxProducers]uint64
	for number, seat := range h.frames() {
		if seat < len(last) {
			last[seat] = number
		}
	}
	first := uint64(math.MaxUint64)
	for seat, m := range h.producers {
		if m != nil && m.left && last[seat] != 0 {
			first = min(first, last[seat]+1)
		}
	}
	if first == math.MaxUint64 || first > h.ahead() {
		return false
	}
	h.first = first
	return true
}

// ahead returns the smallest number that an active consumer has not released.
func (ms *members) ahead() uint64 {
	n := uint64(math.MaxUint64)
	for _, c := range ms.consumers {
		if c != nil && c.joined && !c.left {
			n = min(n, c.cursor.floor.Load())
		}
	}
	return n
}
