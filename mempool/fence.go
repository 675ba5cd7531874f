package mempool

import (
	"math"

	"github.com/poolbridge/poolbridge/internal/typed"
)

// If the process that writes a timeline is gone, the service adds letGo to each word of the timeline. If that process says that the content
// of a word's fence failed, it adds letGo to this word. The word is then so great that every wait for the word ends. The word modulo letGo is
// the last value that the word had before.
const letGo = MaxFenceValue + 1

// Fence identifies a point in the work of a process. A fence is reached when its word of the timeline is Value or more. A Fence is plain
// data: a GPU waits for it, or reaches it, in streamqueue.go, and an [Order] decides when.
type Fence struct {
	Timeline uint64 // timeline id
	Word     uint64 // index of the word
	Value    uint64 // 1 or more
}

// Validate returns an error if a field of t is out of range.
//
// Errors: [ErrInvalid].
func (t Fence) Validate() error {
	switch {
	case t.Word >= TimelineWords:
		return typed.Errorf(ErrInvalid, "a timeline has %d words, there is no word %d", TimelineWords, t.Word)
	case t.Value == 0 || t.Value > MaxFenceValue:
		return typed.Errorf(ErrInvalid, "the value of a fence lies between 1 and 2^62-1, not %d", t.Value)
	}
	return nil
}

// passed reports whether a wait for the value `value` ends when a word of a timeline has the value `word`. The comparison is cyclic, as in
// the driver's function cuStreamWaitValue64.
func passed(word, value uint64) bool { return word-value <= math.MaxInt64 }

// kept reports whether the word really reached value. Call kept only if passed returns true.
func kept(word, value uint64) bool { return word%letGo >= value }
