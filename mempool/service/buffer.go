package service

import (
	"context"
	"time"

	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// checkContent marks the buffer as failed if its producer has said that the content failed. The caller holds s.mu.
func (s *Service) checkContent(b *ledger.Buffer) {
	for _, t := range b.Ready {
		if !b.Failed && s.timelines.Failed(t) {
			s.ledger.Fail(b, s.timelines.Reason(t))
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
	b.Ready, b.Block.Fences = s.timelines.Incomplete(b.Ready), s.timelines.Pending(b.Block.Fences)
	if n() <= maxFences {
		return nil
	}
	return situation.Of(mempool.ErrBusy, "work with %d fences is under way on buffer %d, and a lease comes with at most %d", n(), b.ID, maxFences)
}

// grant makes a lease. The caller holds Service.mu, and ledger.Available has returned nil.
func (s *Session) grant(b *ledger.Buffer, write bool) GrantedLease {
	svc := s.svc
	s.noteUse()
	b.Ready = svc.timelines.Incomplete(b.Ready)
	wait := b.Ready.Union(nil)
	if write {
		b.Block.Fences = svc.timelines.Pending(b.Block.Fences)
		wait = b.Ready.Union(b.Block.Fences)
	}
	l := svc.ledger.Grant(b, s.rec, write, wait, uint32(time.Since(svc.began)/time.Second))
	_, mapped := s.rec.Mapped[b.Block.ID]
	return GrantedLease{Lease: Lease{s, l}, Grant: svc.describe(l), Mapped: mapped}
}

// changedBuffer wakes the requests that wait for a buffer. The caller holds s.mu.
func (s *Service) changedBuffer(b *ledger.Buffer) {
	if c := s.changed[b.ID]; c != nil {
		c.broadcast()
		delete(s.changed, b.ID)
	}
}

// nextChange returns the signal that fires when a buffer changes. The caller holds s.mu.
func (s *Service) nextChange(b *ledger.Buffer) *signal {
	c := s.changed[b.ID]
	if c == nil {
		c = new(signal)
		s.changed[b.ID] = c
	}
	return c
}

// recycleUnused recycles the buffer's block if nothing holds the buffer any more. The caller holds s.mu.
func (s *Service) recycleUnused(b *ledger.Buffer) {
	s.changedBuffer(b)
	if !b.Unused() {
		return
	}
	b.Block.Fences = s.timelines.Pending(b.Block.Fences.Union(b.Ready))
	if s.view != nil {
		s.view.end(b)
	}
	s.ledger.RemoveBuffer(b)
	p := s.poolOf(b.Block.Pool)
	p.waiters.broadcast()
	p.recycle(b.Block)
}

// lease leases the buffer that the function `find` returns. It waits until the session can lease the buffer, but not longer than the time
// `wait`. The argument `text` is the name that `find` searches for, or empty. lease calls `find` with Service.mu held. If `find` returns
// ErrNotFound, it may also return a signal. After this signal, lease calls `find` again.
func (s *Session) lease(ctx context.Context, text string, write bool, wait time.Duration, find func() (*ledger.Buffer, *signal, error)) (g GrantedLease, err error) {
	w := newWaiter(ctx, s, wait, purpose{what: forName, name: text})
	defer w.stop()
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	for {
		if err := s.rec.Alive(); err != nil {
			return g, err
		}
		b, again, err := find()
		if err == nil {
			pool := b.Block.Pool
			if !pool.Access.Allows(s.rec.Peer) {
				return g, pool.Denied(s.rec.Peer)
			}
			svc.checkContent(b)
			if err = svc.ledger.Available(b, write); err == nil {
				if err = svc.ledger.MayLease(s.rec); err != nil {
					return g, err
				}
				if err = svc.crowded(b, write); err == nil {
					return s.grant(b, write), nil
				}
				again = soon()
			}
			if b.Failed {
				return g, err
			}
		}
		if b != nil {
			w.purpose = purpose{what: forBuffer, pool: b.Block.Pool, buffer: b.ID}
			w.long = func(waited time.Duration) { s.noteLeaseLong(b, waited) }
			if again == nil && w.patient() {
				again = svc.nextChange(b)
			}
		}
		if again == nil {
			return g, err
		}
		if !w.wait(again.next()) {
			if b == nil && wait > 0 {
				err = situation.Of(mempool.ErrTimeout, "waited %v: %v", wait, err)
			}
			return g, w.cause(err)
		}
	}
}
