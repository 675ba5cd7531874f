package service

import (
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// This file says which fences nobody needs to wait for any more. A fence names its timeline by id. If the service has no such timeline any
// more, the timeline has ended. The caller of each of these methods holds s.mu.

// over says whether nobody needs to wait for t any more: t is reached, or its timeline has ended.
func (s *Service) over(t mempool.Fence) bool {
	of := s.timelines[t.Timeline]
	return of == nil || of.dead || of.page.Passed(t.Word, t.Value)
}

// failed says whether the session that writes the timeline of t has marked t as failed: the content that should be complete at t will never
// be complete. If the timeline is dead, failed returns false: timeline.die has already marked the buffers with incomplete content as
// failed.
func (s *Service) failed(t mempool.Fence) bool {
	of := s.timelines[t.Timeline]
	return of != nil && !of.dead && of.page.Failed(t.Word, t.Value)
}

// kept drops the fences for which the function `keep` returns false. It changes ts in place.
func kept(ts ledger.Fences, keep func(mempool.Fence) bool) ledger.Fences {
	left := ts[:0]
	for _, t := range ts {
		if keep(t) {
			left = append(left, t)
		}
	}
	if len(left) == 0 {
		return nil
	}
	return left
}

// pending drops the fences that are over. It changes ts in place.
func (s *Service) pending(ts ledger.Fences) ledger.Fences {
	return kept(ts, func(t mempool.Fence) bool { return !s.over(t) })
}

// incomplete drops the fences that are over, except the fences that have failed: readers must learn that the content failed. It changes
// ts in place.
func (s *Service) incomplete(ts ledger.Fences) ledger.Fences {
	return kept(ts, func(t mempool.Fence) bool { return !s.over(t) || s.failed(t) })
}

// more returns the fences of ts and of `done`, without the fences that are over. If more kept the fences that are over, a buffer with many
// readers, one after the other, would collect a fence for each reader.
func (s *Service) more(ts, done ledger.Fences) ledger.Fences {
	if len(done) == 0 {
		return ts
	}
	return s.pending(ts.Union(done))
}

// plain returns the fences that are not over, and the fences that have failed.
func (s *Service) plain(ts ledger.Fences) []mempool.Fence {
	var out []mempool.Fence
	for _, t := range ts {
		if !s.over(t) || s.failed(t) {
			out = append(out, t)
		}
	}
	return out
}

// quiet says whether all fences of b are reached, and drops those that are.
func (s *Service) quiet(b *ledger.Block) bool {
	b.Fences = s.pending(b.Fences)
	return len(b.Fences) == 0
}
