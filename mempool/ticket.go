package mempool

import "math"

// The words of a timeline.
const (
	// TimelineWords is how many words a timeline has.
	TimelineWords = 512
	// MaxTicketValue is the greatest value of a ticket.
	MaxTicketValue = letGo - 1

	// letGo is what the service adds to the words of a process that is gone: every wait ends, and what the word says
	// below it is what was really reached.
	letGo = 1 << 62
)

// Ticket names a moment in somebody's work: it is reached when a word of a timeline is Value or more. It is plain data.
type Ticket struct {
	Timeline uint64 // timeline id
	Word     uint64 // index of the word
	Value    uint64 // counts up from 1
}

// Validate says whether a timeline could have such a ticket.
//
// Errors: [ErrInvalid].
func (t Ticket) Validate() error {
	switch {
	case t.Word >= TimelineWords:
		return situation(ErrInvalid, "a timeline has %d words, there is no word %d", TimelineWords, t.Word)
	case t.Value == 0 || t.Value > MaxTicketValue:
		return situation(ErrInvalid, "the value of a ticket lies between 1 and 2^62-1, not %d", t.Value)
	}
	return nil
}

// passed says whether a wait for value ends at word: by cyclic comparison, as cuStreamWaitValue64 does it.
func passed(word, value uint64) bool { return word-value <= math.MaxInt64 }

// kept says whether value had really been reached, where passed is true.
func kept(word, value uint64) bool { return word%letGo >= value }

// ticket is a Ticket in the service's books. It is guarded by Service.mu.
type ticket struct {
	timeline *timeline
	word     uint64
	value    uint64
}

// over says whether nobody need wait for t any more.
func (t ticket) over() bool {
	return t.timeline.dead || passed(t.timeline.page.Load(t.word), t.value)
}

func (t ticket) plain() Ticket {
	return Ticket{Timeline: t.timeline.id, Word: t.word, Value: t.value}
}

// tickets are at most one for each word of each timeline.
type tickets []ticket

// add adds t, if it says more than what is there.
func (ts tickets) add(t ticket) tickets {
	for i := range ts {
		if ts[i].timeline == t.timeline && ts[i].word == t.word {
			ts[i].value = max(ts[i].value, t.value)
			return ts
		}
	}
	return append(ts, t)
}

// pending drops what need not be waited for any more.
func (ts tickets) pending() tickets {
	left := ts[:0]
	for _, t := range ts {
		if !t.over() {
			left = append(left, t)
		}
	}
	clear(ts[len(left):])
	if len(left) == 0 {
		return nil
	}
	return left
}

// and returns the tickets of both, and changes neither.
func (ts tickets) and(more tickets) tickets {
	if len(ts)+len(more) == 0 {
		return nil
	}
	sum := append(make(tickets, 0, len(ts)+len(more)), ts...)
	for _, t := range more {
		sum = sum.add(t)
	}
	return sum
}

// more is ts with what is left of done: a buffer that lives for long must not remember everybody who read it.
func (ts tickets) more(done tickets) tickets {
	if len(done) == 0 {
		return ts
	}
	return ts.and(done).pending()
}

func (ts tickets) plain() []Ticket {
	var out []Ticket
	for _, t := range ts {
		if !t.over() {
			out = append(out, t.plain())
		}
	}
	return out
}
