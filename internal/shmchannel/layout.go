package shmchannel

import "math/bits"

// These constants are the sizes of the channel's files and the offsets in these files, in bytes. docs/streams.md has
// tables of them.
const (
	rosterBytes    = 73_728
	headBytes      = 8_192 // size of a sequencer or a cursor without the part that grows with N
	trackHeadBytes = 4_096

	recordBytes      = 64
	descriptionBytes = 576
	metaBytes        = 8_448
	doneBytes        = 32

	eventBytes = 64
	maxMeta    = 8_320 // greatest size of the meta, without the event
)

const minSlots = 64

// layout holds the two numbers that determine the sizes of all files of a channel.
type layout struct {
	capacity uint64
	slots    uint64 // N
}

func layoutFor(capacity int) layout {
	n := uint64(1) << bits.Len64(2*uint64(capacity)-1) // the smallest power of two that is at least twice the capacity
	return layout{uint64(capacity), max(n, minSlots)}
}

// valid reports whether capacity and slots are within their limits and fit together.
func (l layout) valid() bool {
	return l.capacity >= 1 && l.capacity <= MaxCapacity && l.slots >= minSlots && l.slots <= 1<<16 &&
		l.slots&(l.slots-1) == 0 && l.slots >= 2*l.capacity
}

func (l layout) mask() uint64 { return l.slots - 1 }

// oldest returns the oldest number that a broadcast keeps when its newest number is `tail`.
func (l layout) oldest(tail uint64) uint64 {
	if tail < l.capacity {
		return 1
	}
	return tail - l.capacity + 1
}

func (l layout) sequencerBytes() uint64 { return headBytes + 16*l.slots }
func (l layout) cursorBytes() uint64    { return headBytes + doneBytes*l.slots }

func (l layout) trackBytes() uint64 {
	return (trackHeadBytes + l.slots*(recordBytes+descriptionBytes+metaBytes) + 4095) &^ 4095
}

func (l layout) descriptionsAt() uint64 { return trackHeadBytes + recordBytes*l.slots }
func (l layout) metaAt() uint64         { return l.descriptionsAt() + descriptionBytes*l.slots }
