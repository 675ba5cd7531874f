package shmchannel

// Look is what the host found, at one look at the channel, that is still needed of what producers published: frames that are kept, or
// that a consumer has in hand. The blocks come from memory that members write: the caller asks only for those that it lent to the producer.
type Look struct {
	held map[uint64]struct{} // blocks that consumers hold, of any producer
	all  bool                // somebody is taking a frame just now
	of   map[*Member]*found
}

// found is what a look found of one producer.
type found struct {
	blocks map[uint64]struct{}
	all    bool
}

// Names says whether the channel needs a block that a producer of the look published.
func (l *Look) Names(m *Member, block uint64) bool {
	if _, ok := l.held[block]; ok {
		return true
	}
	f := l.of[m]
	if f == nil {
		return false
	}
	_, ok := f.blocks[block]
	return ok
}

// Unsure says that it could not be told which blocks of the producer are needed, so that all are.
func (l *Look) Unsure(m *Member) bool {
	f := l.of[m]
	return l.all || f == nil || f.all
}

// Look looks at what the channel needs of what these producers had published when they left. It reads what consumers say once, however
// many producers there are.
func (h *Host) Look(producers ...*Member) *Look {
	l := &Look{held: make(map[uint64]struct{}), of: make(map[*Member]*found, len(producers))}
	t := h.sequencer.loadTail()
	var in [MaxProducers]*Member // that have a slot
	forgotten := false
	for _, m := range producers {
		f := &found{blocks: make(map[uint64]struct{})}
		l.of[m] = f
		if m.track == nil {
			forgotten = true
			continue
		}
		in[m.Slot] = m
		for _, n := range h.kept(m) {
			if b := m.track.block(n); b != 0 {
				f.blocks[b] = struct{}{}
			}
		}
	}
	spans := h.newSpans(t, l, &in)
	for _, c := range h.consumers {
		if c == nil || !c.joined || c.gone {
			continue
		}
		// A consumer holds a frame before it moves its floor over it.
		if h.mode == Broadcast && c.policy.blocks() && (c.left || h.roster.state.Load() == channelDestroyed) {
			if spans.add(c.cursor) && forgotten { // their records are gone
				for _, m := range producers {
					l.of[m].all = l.of[m].all || m.track == nil
				}
			}
		}
		l.hold(c.cursor)
	}
	return l
}

// hold adds what a consumer holds.
func (l *Look) hold(c *cursor) {
	for i := range c.used() {
		hold := &c.holds[i]
		n, b := hold.number.Load(), hold.block.Load()
		switch {
		case n == 0:
		case b != 0 && hold.number.Load() == n:
			l.held[b] = struct{}{}
		default: // it is taking the frame just now
			l.all = true
		}
	}
}

// lookSpans adds to a look the frames that consumers which left have taken and not released.
type lookSpans struct {
	*Host
	tail tail
	look *Look
	in   *[MaxProducers]*Member
	seen []uint64 // the number that was looked at in each slot
}

func (h *Host) newSpans(t tail, l *Look, in *[MaxProducers]*Member) *lookSpans {
	return &lookSpans{Host: h, tail: t, look: l, in: in, seen: make([]uint64, h.slots)}
}

// add adds a consumer's, and says whether there are any.
func (s *lookSpans) add(c *cursor) bool {
	floor, next := c.floor.Load(), min(c.next.Load(), s.tail.number()+1)
	if floor >= next {
		return false
	}
	if next-floor > s.slots {
		s.look.all = true
		return true
	}
	for n := floor; n < next; n++ {
		seen := &s.seen[n&s.mask()]
		if *seen == n && n != 0 {
			continue
		}
		slot, how := s.sequencer.producerOf(n, s.tail)
		if how != published {
			s.look.all = true
			continue
		}
		*seen = n
		if slot >= len(s.in) || s.in[slot] == nil {
			continue
		}
		m := s.in[slot]
		if b := m.track.block(n); b != 0 {
			s.look.of[m].blocks[b] = struct{}{}
		} else {
			s.look.of[m].all = true
		}
	}
	return true
}
