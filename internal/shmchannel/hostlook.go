package shmchannel

// Look is the result of [Host.Look]. It says which blocks of some producers the channel still needs. The channel needs a block if it keeps
// the block's frame or if a consumer has this frame in hand. The block numbers in a Look come from memory that members write, so the caller
// must ask only about blocks that it has lent to the producer.
type Look struct {
	held map[uint64]struct{} // blocks in the holds of consumers, of all producers
	all  bool                // the look could not read everything, so any block may be in use
	of   map[*Member]*found
}

// found is what a [Look] found about one producer.
type found struct {
	blocks map[uint64]struct{}
	all    bool
}

// Names reports whether the channel needs a block. m is the producer that published the block.
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

// Unsure reports whether [Host.Look] could not find out which blocks of producer m the channel needs. If Unsure returns true, the caller
// must treat all blocks of the producer as needed.
func (l *Look) Unsure(m *Member) bool {
	f := l.of[m]
	return l.all || f == nil || f.all
}

// Look finds out which blocks of the given producers the channel still needs. The producers must have left. Look reads each consumer's file
// only once for all these producers.
func (h *Host) Look(producers ...*Member) *Look {
	l := &Look{held: make(map[uint64]struct{}), of: make(map[*Member]*found, len(producers))}
	t := h.sequencer.loadTail()
	var in [MaxProducers]*Member // the producers that still have a seat
	forgotten := false
	for _, m := range producers {
		f := &found{blocks: make(map[uint64]struct{})}
		l.of[m] = f
		if m.track == nil {
			forgotten = true
			continue
		}
		in[m.Seat] = m
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
		// A consumer first stores a frame in a hold and then moves its floor past the frame. So Look first reads the floor and then the holds: in
		// the other order, it could miss the frame in both.
		if h.mode == Broadcast && c.policy.blocks() && (c.left || h.roster.state.Load() == channelDestroyed) {
			if spans.add(c.cursor) && forgotten { // Look cannot read the records of a producer without a track
				for _, m := range producers {
					l.of[m].all = l.of[m].all || m.track == nil
				}
			}
		}
		l.hold(c.cursor)
	}
	return l
}

// hold adds the blocks in the holds of a consumer.
func (l *Look) hold(c *cursor) {
	for i := range c.used() {
		hold := &c.holds[i]
		n, b := hold.number.Load(), hold.block.Load()
		switch {
		case n == 0:
		case b != 0 && hold.number.Load() == n:
			l.held[b] = struct{}{}
		default: // the consumer is just taking the frame, and the hold does not have the frame's block yet
			l.all = true
		}
	}
}

// lookSpans adds frames to a look: the frames that consumers took and did not release before they left.
type lookSpans struct {
	*Host
	tail tail
	look *Look
	in   *[MaxProducers]*Member
	seen []uint64 // for each slot, the number that add has already handled
}

func (h *Host) newSpans(t tail, l *Look, in *[MaxProducers]*Member) *lookSpans {
	return &lookSpans{Host: h, tail: t, look: l, in: in, seen: make([]uint64, h.slots)}
}

// add adds to s.look the frames that one consumer has taken and not released. It returns false if the consumer has released all frames that
// it has taken.
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
		seat, how := s.sequencer.producerOf(n, s.tail)
		if how != published {
			s.look.all = true
			continue
		}
		*seen = n
		if seat >= len(s.in) || s.in[seat] == nil {
			continue
		}
		m := s.in[seat]
		if b := m.track.block(n); b != 0 {
			s.look.of[m].blocks[b] = struct{}{}
		} else {
			s.look.of[m].all = true
		}
	}
	return true
}
