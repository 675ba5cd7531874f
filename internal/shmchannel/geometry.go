package shmchannel

import "math/bits"

// These constants are sizes in the channel's files, in bytes. Others are in limits_gen.go. docs/streams.md describes the files.
const (
	trackHeadBytes = 4_096
	doneBytes      = 32
)

// geometry holds the two numbers that determine the sizes of all files of a channel.
type geometry struct {
	capacity uint64
	slots    uint64 // N
}

func geometryFor(capacity int) geometry {
	n := uint64(1) << bits.Len64(2*uint64(capacity)-1) // the smallest power of two that is at least twice the capacity
	return geometry{uint64(capacity), max(n, MinSlots)}
}

// valid reports whether capacity and slots are within their limits and fit together.
func (l geometry) valid() bool {
	return l.capacity >= 1 && l.capacity <= MaxCapacity && l.slots >= MinSlots && l.slots <= MaxSlots &&
		l.slots&(l.slots-1) == 0 && l.slots >= 2*l.capacity
}

func (l geometry) mask() uint64 { return l.slots - 1 }

// oldest returns the oldest number that a broadcast keeps when its newest number is `tail`.
func (l geometry) oldest(tail uint64) uint64 {
	if tail < l.capacity {
		return 1
	}
	return tail - l.capacity + 1
}

func (l geometry) sequencerBytes() uint64 { return HeadBytes + 24*l.slots }
func (l geometry) cursorBytes() uint64    { return HeadBytes + doneBytes*l.slots }

func (l geometry) trackBytes() uint64 {
	return (trackHeadBytes + l.slots*(RecordBytes+DescriptionBytes+MetaBytes+LayoutBytes) + 4095) &^ 4095
}

func (l geometry) descriptionsAt() uint64 { return trackHeadBytes + RecordBytes*l.slots }
func (l geometry) metaAt() uint64         { return l.descriptionsAt() + DescriptionBytes*l.slots }
func (l geometry) layoutsAt() uint64      { return l.metaAt() + MetaBytes*l.slots }
