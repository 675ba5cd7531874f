package shmchannel

// Waiting returns how many frames of a queue are not acknowledged.
func (h *Host) Waiting() uint64 {
	if h.mode != Queue {
		return 0
	}
	t, n := h.sequencer.loadTail(), uint64(0)
	from := uint64(1)
	if t.number() >= h.slots {
		from = t.number() - h.slots + 1
	}
	for number := from; number <= t.number(); number++ {
		if r := h.sequencer.resident(number, t); r.number != 0 && !r.done() {
			n++
		}
	}
	return n
}

// Behind returns how many of the newest frames of a broadcast a consumer has not taken. The number comes from the consumer's own memory.
func (h *Host) Behind(m *Member) uint64 {
	if h.mode != Broadcast || m.cursor == nil || !m.joined || m.left {
		return 0
	}
	published, next := h.Published(), m.cursor.next.Load()
	if next == 0 || next > published {
		return 0
	}
	return published - next + 1
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
