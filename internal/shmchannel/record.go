package shmchannel

import (
	"encoding/binary"
	"math"
	"sync/atomic"
)

// Fence identifies a value of a word of a timeline. The word reaches this value when some work is done. If the Value of a Fence is 0, there
// is no work to wait for.
type Fence struct {
	Timeline uint64
	Word     uint64
	Value    uint64
}

// MaxWord is the greatest index of a word of a timeline.
const MaxWord = TimelineWords - 1

// Record is what a producer publishes about a frame.
type Record struct {
	Block  uint64 // 1 to 2^63-1
	Buffer uint64
	Bytes  uint64 // size of the frame's memory
	Time   uint64 // nanoseconds since 1970; 0: the time of publishing
	// Ready is the fence that is reached when the content of the frame is complete. Ready always belongs to the producer's own timeline, so
	// the channel does not store Ready.Timeline.
	Ready Fence
	// Event is the handle of an interprocess event (64 bytes), or is empty.
	Event []byte
	// Meta is the encoded map of texts that the producer adds to the frame. [AppendMeta] encodes such a map.
	Meta        []byte
	Description *Description
	// Owner is any value that the caller chooses. When the channel gives the block back to the producer, the field Owner of [Returned] has the
	// same value. The channel does not store Owner in shared memory.
	Owner any
}

// check returns an error if the record cannot be published.
func (r *Record) check() error {
	switch {
	case r.Block == 0 || r.Block > math.MaxInt64:
		return invalid("the id of a block is a number from 1 to 2^63-1, not %d", r.Block)
	case r.Buffer > math.MaxInt64 || r.Bytes > math.MaxInt64 || r.Time > math.MaxInt64:
		return invalid("buffer %d, %d bytes, time %d: each is at most 2^63-1", r.Buffer, r.Bytes, r.Time)
	case r.Ready.Value > MaxFenceValue || r.Ready.Word > MaxWord:
		return invalid("a fence has a word up to %d and a value up to %d, not %d and %d", MaxWord, uint64(MaxFenceValue), r.Ready.Word, r.Ready.Value)
	case len(r.Event) != 0 && len(r.Event) != EventBytes:
		return invalid("an event has %d bytes, not %d", EventBytes, len(r.Event))
	case r.Description == nil:
		return invalid("the record has no description")
	}
	if len(r.Meta) > 0 {
		return CheckMeta(r.Meta)
	}
	return nil
}

const flagEvent = 1

// rawRecord is the layout of a record in a track.
type rawRecord struct {
	seq         atomic.Uint64
	block       atomic.Uint64
	buffer      atomic.Uint64
	bytes       atomic.Uint64
	time        atomic.Uint64
	ready       atomic.Uint64
	small       atomic.Uint64 // word of the fence (16 bits), flags (16), bytes of meta (32)
	description atomic.Uint64
}

// rawMeta is the part of a track that stores the event and the meta of one record.
type rawMeta [MetaBytes / 8]atomic.Uint64

// storeBytes writes b into the words `to`.
func storeBytes(to []atomic.Uint64, b []byte) {
	for ; len(b) >= 8; b, to = b[8:], to[1:] {
		put(&to[0], binary.LittleEndian.Uint64(b))
	}
	if len(b) > 0 {
		var rest [8]byte
		copy(rest[:], b)
		put(&to[0], binary.LittleEndian.Uint64(rest[:]))
	}
}

// loadBytes reads n bytes from the words `from`, and appends them to the slice `to`.
func loadBytes(to []byte, from []atomic.Uint64, n int) []byte {
	for ; n >= 8; n, from = n-8, from[1:] {
		to = binary.LittleEndian.AppendUint64(to, from[0].Load())
	}
	if n > 0 {
		var rest [8]byte
		binary.LittleEndian.PutUint64(rest[:], from[0].Load())
		to = append(to, rest[:n]...)
	}
	return to
}
