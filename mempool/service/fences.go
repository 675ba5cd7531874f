package service

import "github.com/poolbridge/poolbridge/mempool"

// fence is a Fence in the service's state. It is guarded by Service.mu.
type fence struct {
	timeline *timeline
	word     uint64
	value    uint64
}

// over says whether nobody need wait for t any more.
func (t fence) over() bool {
	return t.timeline.dead || t.timeline.page.Passed(t.word, t.value)
}

func (t fence) plain() mempool.Fence {
	return mempool.Fence{Timeline: t.timeline.id, Word: t.word, Value: t.value}
}

// fences are at most one for each word of each timeline.
type fences []fence

// add adds t, if it says more than what is there.
func (ts fences) add(t fence) fences {
	for i := range ts {
		if ts[i].timeline == t.timeline && ts[i].word == t.word {
			ts[i].value = max(ts[i].value, t.value)
			return ts
		}
	}
	return append(ts, t)
}

// pending drops what need not be waited for any more.
func (ts fences) pending() fences {
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

// union returns the fences of ts and of more. It changes neither.
func (ts fences) union(more fences) fences {
	if len(ts)+len(more) == 0 {
		return nil
	}
	sum := append(make(fences, 0, len(ts)+len(more)), ts...)
	for _, t := range more {
		sum = sum.add(t)
	}
	return sum
}

// more is ts with what is left of done: a buffer that lives for long must not remember everybody who read it.
func (ts fences) more(done fences) fences {
	if len(done) == 0 {
		return ts
	}
	return ts.union(done).pending()
}

func (ts fences) plain() []mempool.Fence {
	var out []mempool.Fence
	for _, t := range ts {
		if !t.over() {
			out = append(out, t.plain())
		}
	}
	return out
}
