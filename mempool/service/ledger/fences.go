package ledger

import "github.com/poolbridge/poolbridge/mempool"

// Fences has at most one fence for each word of each timeline.
type Fences []mempool.Fence

// Add adds t. If ts already has a fence of the same word, the result has only the fence with the greater value.
func (ts Fences) Add(t mempool.Fence) Fences {
	for i := range ts {
		if ts[i].Timeline == t.Timeline && ts[i].Word == t.Word {
			ts[i].Value = max(ts[i].Value, t.Value)
			return ts
		}
	}
	return append(ts, t)
}

// Union returns the fences of ts and of more. It changes neither slice.
func (ts Fences) Union(more Fences) Fences {
	if len(ts)+len(more) == 0 {
		return nil
	}
	sum := append(make(Fences, 0, len(ts)+len(more)), ts...)
	for _, t := range more {
		sum = sum.Add(t)
	}
	return sum
}

// Drop removes the fences for which the function `over` returns true. It changes ts in place.
func (ts Fences) Drop(over func(mempool.Fence) bool) Fences {
	left := ts[:0]
	for _, t := range ts {
		if !over(t) {
			left = append(left, t)
		}
	}
	if len(left) == 0 {
		return nil
	}
	return left
}
