package service

import "github.com/poolbridge/poolbridge/mempool"

// fence is a [mempool.Fence] with a pointer to its timeline. Service.mu guards fences.
type fence struct {
	timeline *timeline
	word     uint64
	value    uint64
}

// over says whether nobody needs to wait for t any more: t is reached, or its timeline has ended.
func (t fence) over() bool {
	return t.timeline.dead || t.timeline.page.Passed(t.word, t.value)
}

// failed says whether the session that writes the timeline of t has marked t as failed: the content that should be complete at t will never
// be complete. If the timeline is dead, failed returns false: timeline.die has already marked the buffers with incomplete content as
// failed.
func (t fence) failed() bool { return !t.timeline.dead && t.timeline.page.Failed(t.word, t.value) }

func (t fence) plain() mempool.Fence {
	return mempool.Fence{Timeline: t.timeline.id, Word: t.word, Value: t.value}
}

// fences has at most one fence for each word of each timeline.
type fences []fence

// add adds t. If ts already has a fence of the same word, the result has only the fence with the greater value.
func (ts fences) add(t fence) fences {
	for i := range ts {
		if ts[i].timeline == t.timeline && ts[i].word == t.word {
			ts[i].value = max(ts[i].value, t.value)
			return ts
		}
	}
	return append(ts, t)
}

// pending drops the fences that are over. It changes ts in place.
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

// incomplete drops the fences that are over, except the fences that have failed: readers must learn that the content failed. It changes
// ts in place.
func (ts fences) incomplete() fences {
	left := ts[:0]
	for _, t := range ts {
		if !t.over() || t.failed() {
			left = append(left, t)
		}
	}
	clear(ts[len(left):])
	if len(left) == 0 {
		return nil
	}
	return left
}

// union returns the fences of ts and of more. It changes neither slice.
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

// more returns the fences of ts and of `done`, without the fences that are over. If more kept the fences that are over, a buffer with many
// readers, one after the other, would collect a fence for each reader.
func (ts fences) more(done fences) fences {
	if len(done) == 0 {
		return ts
	}
	return ts.union(done).pending()
}

// plain returns the fences that are not over, and the fences that have failed.
func (ts fences) plain() []mempool.Fence {
	var out []mempool.Fence
	for _, t := range ts {
		if !t.over() || t.failed() {
			out = append(out, t.plain())
		}
	}
	return out
}
