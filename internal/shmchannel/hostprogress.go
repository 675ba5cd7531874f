package shmchannel

// The numbers of this file come from memory that members write. None of them is greater than members could make it by publishing and taking
// frames, except that a tail may have any number of 48 bits.

// Waiting returns how many frames of a queue are not acknowledged.
func (h *Host) Waiting() uint64 {
	_, open := h.queued()
	return open
}

// queued returns how many frames of a queue wait for a consumer, and how many are not acknowledged.
func (h *Host) queued() (waiting, open uint64) {
	if h.mode != Queue {
		return 0, 0
	}
	t := h.sequencer.loadTail()
	from := uint64(1)
	if t.number() >= h.slots {
		from = t.number() - h.slots + 1
	}
	for number := from; number <= t.number(); number++ {
		r := h.sequencer.resident(number, t)
		if r.done() {
			continue
		}
		open++
		if r.waits() {
			waiting++
		}
	}
	return waiting, open
}

// Behind returns how many of the newest frames of a broadcast a consumer has not taken, those included that are dropped by now.
func (h *Host) Behind(m *Member) uint64 {
	if !h.follows(m) {
		return 0
	}
	return h.since(m, m.cursor.next.Load())
}

// Needs returns how many places of a broadcast a consumer takes up: of frames that it has not taken, and, if producers wait for it, of frames
// that it has not released. If that is the capacity, the next frame waits, fails, or drops one that the consumer has not taken.
func (h *Host) Needs(m *Member) uint64 {
	n := h.Behind(m)
	if h.follows(m) && m.policy.blocks() {
		n = h.since(m, m.cursor.floor.Load())
	}
	return min(n, h.capacity)
}

// Used returns how many places of the channel are taken up: those of the consumer of a broadcast that needs most, or those of the frames of
// a queue that wait for a consumer. If that is the capacity, the next frame waits, fails, or drops another.
func (h *Host) Used() (used uint64) {
	if h.mode == Queue {
		waiting, open := h.queued()
		if open == h.slots || h.policy == Latest && waiting > 0 {
			return h.capacity // a queue that keeps the newest alone has no place beside it
		}
		return min(waiting, h.capacity)
	}
	for _, m := range h.consumers {
		if m != nil {
			used = max(used, h.Needs(m))
		}
	}
	return used
}

// follows reports whether a member is a consumer that a broadcast counts frames for.
func (h *Host) follows(m *Member) bool {
	return h.mode == Broadcast && m.cursor != nil && m.joined && !m.left
}

// since returns how many frames there are from a number on that stands in a consumer's file. It gets none before its first.
func (h *Host) since(m *Member, number uint64) uint64 {
	newest := h.sequencer.loadTail().number()
	if number == 0 || number > newest || m.start > newest {
		return 0
	}
	return newest - max(number, m.start) + 1
}

// maxDropped is where counting ends, far beyond what members do in earnest: the count must not begin anew.
const maxDropped = 1 << 62

// Dropped returns how many frames were dropped because consumers were behind: of a broadcast, the frames that each of its consumers missed,
// those that left included; of a queue, the frames that no consumer got. It never shrinks.
func (h *Host) Dropped() uint64 {
	if h.mode == Queue {
		h.dropped = max(h.dropped, min(h.sequencer.drops.Load(), h.Published()))
		return h.dropped
	}
	for _, m := range h.consumers {
		if m != nil {
			h.countMissed(m)
		}
	}
	return h.dropped
}

// countMissed counts what a consumer of a broadcast has missed since it was last counted. It misses no frame that was published before it
// joined.
func (h *Host) countMissed(m *Member) {
	if h.mode != Broadcast || m.cursor == nil || !m.joined || m.policy.blocks() {
		return
	}
	newest := h.Published()
	if newest < m.start {
		return
	}
	most := newest - m.start + 1
	missed := min(m.cursor.missed.Load(), most)
	if next, oldest := m.cursor.next.Load(), h.oldest(newest); !m.left && next < oldest { // these are gone, and the consumer has not noticed yet
		missed = min(missed+oldest-max(next, m.start), most)
	}
	if missed > m.missed {
		h.dropped = min(h.dropped+missed-m.missed, maxDropped)
		m.missed = missed
	}
}

// Blocks appends the blocks of the frames that consumers may still take, and of those that they have in hand, as far as members say the
// truth. Some may be there twice.
func (h *Host) Blocks(to []uint64) []uint64 {
	var tracks [MaxProducers]*track
	for slot, m := range h.producers {
		if m != nil {
			tracks[slot] = m.track
		}
	}
	for number, slot := range h.frames() {
		if slot >= len(tracks) || tracks[slot] == nil {
			continue
		}
		if b := tracks[slot].block(number); b != 0 {
			to = append(to, b)
		}
	}
	for _, c := range h.consumers {
		if c == nil || c.cursor == nil || !c.joined || c.gone {
			continue
		}
		for i := range c.cursor.used() {
			hold := &c.cursor.holds[i]
			if n, b := hold.number.Load(), hold.block.Load(); n != 0 && b != 0 {
				to = append(to, b)
			}
		}
	}
	return to
}
