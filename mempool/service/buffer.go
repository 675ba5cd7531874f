package service

import (
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// broadcast wakes the requests that wait for a buffer.
func (c changes) broadcast(b *ledger.Buffer) {
	if one := c[b.ID]; one != nil {
		one.broadcast()
		delete(c, b.ID)
	}
}

// next returns the signal that fires when a buffer changes.
func (c changes) next(b *ledger.Buffer) *signal {
	if c[b.ID] == nil {
		c[b.ID] = new(signal)
	}
	return c[b.ID]
}

// checkContent marks the buffer as failed if its producer has said that the content failed. The caller holds s.mu.
func (s *Service) checkContent(b *ledger.Buffer) {
	for _, t := range b.Ready {
		if !b.Failed && s.timelines.Failed(t) {
			b.Fail(s.timelines.Reason(t))
		}
	}
}

// crowded returns ErrBusy if a lease would come with more than maxFences fences. The caller holds s.mu.
func (s *Service) crowded(b *ledger.Buffer, write bool) error {
	n := func() int {
		if write {
			return len(b.Ready) + len(b.Block.Fences)
		}
		return len(b.Ready)
	}
	if n() <= maxFences {
		return nil
	}
	b.SetReady(s.timelines.PendingOrFailed(b.Ready))
	b.Block.SetFences(s.timelines.Pending(b.Block.Fences))
	if n() <= maxFences {
		return nil
	}
	return typed.Errorf(mempool.ErrBusy, "work with %d fences is under way on buffer %d, and a lease comes with at most %d", n(), b.ID, maxFences)
}

// recycleUnused recycles the buffer's block if nothing holds the buffer any more. The caller holds s.mu.
func (s *Service) recycleUnused(b *ledger.Buffer) {
	s.changed.broadcast(b)
	b.EndNames()
	if !b.Unused() {
		return
	}
	b.Block.SetFences(s.timelines.Pending(b.Block.Fences.Union(b.Ready)))
	s.viewed.end(b)
	if whole := s.ledger.RemoveBuffer(b); whole != nil {
		s.recycleUnused(whole)
		return
	}
	p := s.pools.of(b.Block.Pool)
	p.room.broadcast() // because the session and the user have less, even if the block does not become free
	p.recycle(b.Block)
}
