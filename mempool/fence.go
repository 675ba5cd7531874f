package mempool

import (
	"math"

	"github.com/poolbridge/poolbridge/internal/situation"
)

// The words of a timeline.
const (
	// TimelineWords is how many words a timeline has.
	TimelineWords = 512
	// MaxFenceValue is the greatest value of a fence.
	MaxFenceValue = letGo - 1

	// letGo is what the service adds to the words of a process that is gone, so that every wait ends. The value below it is the value
	// that was really reached.
	letGo = 1 << 62
)

// Fence identifies a point in the work of a process. It is reached when a word of a timeline is Value or more. It is plain data.
type Fence struct {
	Timeline uint64 // timeline id
	Word     uint64 // index of the word
	Value    uint64 // from 1 on
}

// Validate returns an error if no timeline can have such a fence.
//
// Errors: [ErrInvalid].
func (t Fence) Validate() error {
	switch {
	case t.Word >= TimelineWords:
		return situation.Of(ErrInvalid, "a timeline has %d words, there is no word %d", TimelineWords, t.Word)
	case t.Value == 0 || t.Value > MaxFenceValue:
		return situation.Of(ErrInvalid, "the value of a fence lies between 1 and 2^62-1, not %d", t.Value)
	}
	return nil
}

// passed reports whether a wait for value ends at word. The comparison is cyclic, like that of cuStreamWaitValue64.
func passed(word, value uint64) bool { return word-value <= math.MaxInt64 }

// kept reports whether value was really reached, if passed is true.
func kept(word, value uint64) bool { return word%letGo >= value }
