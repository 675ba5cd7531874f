package shmchannel

import (
	"iter"
	"math"
)

// The functions of this file compute their results from memory that members write. If a member writes nonsense, a count can be wrong, but
// no greater than correct values allow. There are two exceptions. A member can store any number of 48 bits in the tail, and results that
// depend on the tail can then be too great. And Progress returns the member's own numbers, which can be as great as MaxNumber.

// Waiting returns how many frames of a queue are not acknowledged. It returns 0 if the queue is destroyed.
func (h *Host) Waiting() uint64 {
	_, open := h.queued()
	return open
}

// queued returns how many frames of a queue wait for a consumer, and how many are not acknowledged.
func (c *channel) queued() (waiting, open uint64) {
	for r := range c.open() {
		open++
		if r.waits() {
			waiting++
		}
	}
	return waiting, open
}

// open has the frames of a queue that are not acknowledged.
func (c *channel) open() iter.Seq[resident] {
	return func(yield func(resident) bool) {
		if c.mode != Queue || c.roster.state.Load() == channelDestroyed {
			return
		}
		t := c.sequencer.loadTail()
		for number := t.number() - min(t.number(), c.slots) + 1; number <= t.number(); number++ {
			if r := c.sequencer.resident(number, t); !r.done() && !yield(r) {
				return
			}
		}
	}
}

// Oldest returns the consumer that has the oldest frame of a queue that is not acknowledged, or nil if no consumer has a frame.
func (h *Host) Oldest() (of *Member) {
	oldest := uint64(math.MaxUint64)
	for r := range h.open() {
		if m := h.holder(r); m != nil && r.number < oldest {
			oldest, of = r.number, m
		}
	}
	return of
}

// holder returns the consumer that has taken a frame of a queue and not acknowledged it; nil: the frame waits, or no consumer has this seat.
func (ms *members) holder(r resident) *Member {
	if seat := r.claim.tag() - tagConsumer; !r.waits() && seat < uint64(len(ms.consumers)) {
		return ms.consumers[seat]
	}
	return nil
}

// Behind returns how many frames of a broadcast are newer than the last frame that the consumer m took. Frames that the channel has already
// dropped count too.
func (h *Host) Behind(m *Member) uint64 {
	if !h.follows(m) {
		return 0
	}
	return h.since(m, m.cursor.next.Load())
}

// Needs returns how many places of a broadcast the consumer m takes up. The broadcast has as many places as its capacity. Each frame that
// the consumer has not taken takes up a place. If the consumer's policy is Block or Fail, each frame that the consumer has taken and not
// released takes up a place too. If Needs returns the capacity, the next call of Publish waits, fails, or drops a frame that the consumer
// has not taken.
func (h *Host) Needs(m *Member) uint64 {
	n := h.Behind(m)
	if h.follows(m) && m.policy.blocks() {
		n = h.since(m, m.cursor.floor.Load())
	}
	return min(n, h.capacity)
}

// Used returns how many places of the channel are taken up. In a broadcast, Used is the greatest result of Needs for any consumer. In a
// queue, Used is the number of frames that wait for a consumer. If Used returns the capacity, the next call of Publish waits, fails, or
// drops a frame.
func (h *Host) Used() (used uint64) {
	if h.mode == Queue {
		waiting, open := h.queued()
		if open == h.slots || h.policy == Latest && waiting > 0 {
			return h.capacity // a queue with the policy Latest has only one place
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

// Progress says how many frames a member has published or taken, the number of the last one, and when that frame was published, in
// nanoseconds since 1970; 0: that is not known any more.
func (h *Host) Progress(m *Member) (frames, last, when uint64) {
	switch {
	case m.track != nil:
		frames, last = m.track.frames.Load(), m.track.last.Load()
	case m.cursor != nil:
		frames, last = m.cursor.counted.frames.Load(), m.cursor.counted.last.Load()
	}
	t := h.sequencer.loadTail()
	if last == 0 || last > t.number() || h.roster.state.Load() == channelDestroyed {
		return min(frames, MaxNumber), min(last, MaxNumber), 0
	}
	if seat, how := h.sequencer.producerOf(last, t); how == published && seat < len(h.producers) && h.producers[seat] != nil {
		if from := h.producers[seat].track; from != nil {
			when = min(from.published(last), math.MaxInt64)
		}
	}
	return min(frames, MaxNumber), last, when
}

// InHand returns how many frames of a queue each consumer has taken and not acknowledged.
func (h *Host) InHand() map[*Member]uint64 {
	counts := make(map[*Member]uint64)
	for r := range h.open() {
		if m := h.holder(r); m != nil {
			counts[m]++
		}
	}
	return counts
}

// follows reports whether a member is an active consumer of a broadcast.
func (h *Host) follows(m *Member) bool {
	return h.mode == Broadcast && m.cursor != nil && m.joined && !m.left
}

// since returns how many frames have the given number or a greater number. The number comes from the consumer's file. Frames before the
// consumer's first frame do not count.
func (h *Host) since(m *Member, number uint64) uint64 {
	newest := h.sequencer.loadTail().number()
	if number == 0 || number > newest || m.start > newest {
		return 0
	}
	return newest - max(number, m.start) + 1
}

// maxDropped is the greatest count of dropped frames. Honest members never reach it. It keeps the count from overflowing.
const maxDropped = 1 << 62

// Dropped returns how many frames were dropped because consumers were behind. In a broadcast, it is the sum of the frames that each
// consumer missed, and consumers that left count too. In a queue, it is the number of frames that no consumer got because the channel
// dropped them. The result never shrinks.
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

// Missed returns how many frames of a broadcast the consumer m has missed.
func (h *Host) Missed(m *Member) uint64 {
	h.countMissed(m)
	return m.missed
}

// countMissed adds to h.dropped the frames of a broadcast that the consumer m has missed since the last call of countMissed for m. Frames
// before the consumer's first frame do not count.
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
	if next, oldest := m.cursor.next.Load(), h.oldest(newest); !m.left && next < oldest { // the consumer has not noticed yet what it missed
		missed = min(missed+oldest-max(next, m.start), most)
	}
	if missed > m.missed {
		h.dropped = min(h.dropped+missed-m.missed, maxDropped)
		m.missed = missed
	}
}

// Blocks appends to the slice `to` the blocks of the frames that consumers may still take or have in hand. A member that writes nonsense can
// make the result wrong, so the service uses it only in lists and reports, and never to free memory. A block may be in it twice.
func (h *Host) Blocks(to []uint64) []uint64 {
	var tracks [MaxProducers]*track
	for seat, m := range h.producers {
		if m != nil {
			tracks[seat] = m.track
		}
	}
	for number, seat := range h.frames() {
		if seat >= len(tracks) || tracks[seat] == nil {
			continue
		}
		if b := tracks[seat].block(number); b != 0 {
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
