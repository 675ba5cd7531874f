package service

import (
	"context"
	"time"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// Publish gives the buffer of a write lease a name, and makes the lease a read lease. It returns the version of the content. The
// content may become complete only later: when p's fence is reached, or when p's event has happened. Publish does not wait until the
// content is complete, but readers of the buffer do.
//
// Errors: the errors of [Session.Release], [mempool.ErrInvalid] for a bad name, a tensor that does not fit, a version that does not grow or cannot, or a read lease,
// [mempool.ErrExists], [mempool.ErrDenied] if the name belongs to another user, [mempool.ErrLimit], [mempool.ErrClosed] if the pool is
// being destroyed.
func (s *Session) Publish(lease uint64, p mempool.Publication) (version uint64, err error) {
	if err = mempool.ValidateName("buffer", p.Name); err != nil {
		return 0, err
	}
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	l, err := s.rec.Lease(lease)
	if err != nil {
		return 0, err
	}
	b := l.Buffer
	if p.Tensor != nil {
		if err = b.Fits(*p.Tensor); err != nil {
			return 0, err
		}
	}
	switch {
	case !l.Write:
		return 0, typed.Errorf(mempool.ErrInvalid, "lease %d is a read lease: only a write lease can be published", l.ID)
	case b.Block.Pool.Closing:
		return 0, b.Block.Pool.Ending()
	case p.Event != nil && p.Ready == nil:
		return 0, typed.Errorf(mempool.ErrInvalid, "an interprocess event comes beside a fence, and this one comes without")
	}
	b.SetReady(svc.timelines.Pending(b.Ready)) // the fences of earlier writers
	ready := b.Ready
	if p.Ready != nil {
		if err = s.rec.PromiseFence(*p.Ready); err != nil {
			return 0, err
		}
		ready = ready.Union(svc.timelines.PendingOrFailed(ledger.Fences{*p.Ready}))
	}
	if err = svc.ledger.MayName(s.rec, b, p.Name, p.Replace, p.Version); err != nil {
		return 0, err
	}
	named, old := svc.ledger.SetName(p, b, s.rec)
	if p.Tensor != nil {
		b.Tensor = s.rec.Describe(*p.Tensor)
		svc.ledger.Touch(b)
	}
	b.SetReady(ready)
	if p.Event != nil {
		b.SetEvent(p.Event.Handle())
	}
	l.Demote()
	svc.changed.broadcast(b)
	if old != nil {
		svc.recycleUnused(old.Buffer)
	}
	svc.awaited.broadcast(p.Name)
	s.keepAnswerLocked(context.Background(), named.Version)
	return named.Version, nil
}

// removeNameLocked removes a name, and recycles the name's buffer if nothing else holds the buffer.
func (s *Service) removeNameLocked(n *ledger.Name) {
	s.ledger.RemoveName(n)
	s.recycleUnused(n.Buffer)
}

// removeNamesLocked removes the names that end with a session.
func (s *Service) removeNamesLocked(of *ledger.Session) {
	for _, n := range of.Names {
		s.removeNameLocked(n)
	}
}

// Unpublish removes a name. The buffer stays as long as sessions have leases on it.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrDenied] if the name belongs to another user, [mempool.ErrClosed].
func (s *Session) Unpublish(text string) error {
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	if err := s.rec.Alive(); err != nil {
		return err
	}
	n := ledger.Find(s.rec, svc.ledger.Names.Get(text))
	if n == nil {
		return svc.ledger.Unpublished(s.rec, text)
	}
	if n.UID != s.rec.Peer.UID {
		return typed.Errorf(mempool.ErrDenied, "the name %q belongs to user %d", text, n.UID)
	}
	svc.removeNameLocked(n)
	s.keepAnswerLocked(context.Background(), 0)
	return nil
}

// Known is a publication that a session knows: a version of a name's content, and the buffer that has it. Without a buffer, it is none that
// there is.
type Known struct{ Buffer, Version uint64 }

// Get leases the buffer that is published under a name. It waits until the name exists and refers to another publication than `known`, and
// until leases that exclude the new lease have ended; the argument `wait` limits this time. If `known` is not zero, it also waits for
// what replaces content that has failed, and returns that failure at the deadline.
//
// Errors: [mempool.ErrInvalid] for text that is no name, [mempool.ErrNotFound] (if `wait` is 0) or [mempool.ErrTimeout] if nothing is
// published under the name, or nothing else than `known`, and those of Lease but [mempool.ErrStale].
func (s *Session) Get(ctx context.Context, text string, write bool, known Known, wait time.Duration) (g GrantedLease, err error) {
	if err := mempool.ValidateName("buffer", text); err != nil {
		return g, err
	}
	svc := s.svc
	var a *awaitedName
	var found Known
	defer func() {
		if a != nil {
			a.leave()
		}
	}()
	g, err = s.leaseFound(ctx, text, write, wait, func() (*ledger.Buffer, *signal, error) {
		var missing error
		if n := ledger.Find(s.rec, svc.ledger.Names.Get(text)); n != nil {
			found = Known{n.Buffer.ID, n.Version}
			svc.checkContent(n.Buffer)
			switch passed := n.Buffer.Failed && wait > 0 && known != (Known{}); {
			case found == known:
				missing = typed.Errorf(mempool.ErrNotFound, "nothing newer than version %d is published as %q", n.Version, text)
			case passed:
				missing = n.Buffer.Incomplete()
			default:
				return n.Buffer, nil, nil
			}
		} else {
			missing = svc.ledger.Unpublished(s.rec, text)
		}
		if wait <= 0 {
			return nil, nil, missing
		}
		if a == nil {
			a = svc.awaited.await(text)
		}
		return nil, &a.signal, missing
	})
	g.Version = found.Version
	return g, err
}

// await begins a wait for a name; awaitedName.leave ends the wait. The caller holds Service.mu.
func (as *awaitedNames) await(text string) *awaitedName {
	a := as.all[text]
	if a == nil {
		a = &awaitedName{names: as, text: text}
		as.all[text] = a
	}
	a.waiting++
	return a
}

// broadcast wakes the requests that wait for a name. The caller holds Service.mu.
func (as *awaitedNames) broadcast(text string) {
	if a := as.all[text]; a != nil {
		a.broadcast()
	}
}

func (a *awaitedName) leave() {
	as := a.names
	as.svc.mu.Lock()
	defer as.svc.mu.Unlock()
	if a.waiting--; a.waiting == 0 {
		ledger.RemoveKey(&as.all, &as.most, a.text)
	}
}
