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

	// letGo is what the service adds to the words of a process that is gone: every wait ends, and what the word says
	// below it is what was really reached.
	letGo = 1 << 62
)

// Fence names a moment in somebody's work: it is reached when a word of a timeline is Value or more. It is plain data.
type Fence struct {
	Timeline uint64 // timeline id
	Word     uint64 // index of the word
	Value    uint64 // counts up from 1
}

// Validate says whether a timeline could have such a fence.
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

// passed says whether a wait for value ends at word: by cyclic comparison, as cuStreamWaitValue64 does it.
func passed(word, value uint64) bool { return word-value <= math.MaxInt64 }

// kept says whether value had really been reached, where passed is true.
func kept(word, value uint64) bool { return word%letGo >= value }
