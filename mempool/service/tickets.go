package service

import "github.com/poolbridge/poolbridge/mempool"

// ticket is a Ticket in the service's books. It is guarded by Service.mu.
type ticket struct {
	timeline *timeline
	word     uint64
	value    uint64
}

// over says whether nobody need wait for t any more.
func (t ticket) over() bool {
	return t.timeline.dead || t.timeline.page.Passed(t.word, t.value)
}

func (t ticket) plain() mempool.Ticket {
	return mempool.Ticket{Timeline: t.timeline.id, Word: t.word, Value: t.value}
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

func (ts tickets) plain() []mempool.Ticket {
	var out []mempool.Ticket
	for _, t := range ts {
		if !t.over() {
			out = append(out, t.plain())
		}
	}
	return out
}
