package service

import (
	"cmp"
	"context"
	"time"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// ID returns the session's id. No other session of the epoch has this id.
func (s *Session) ID() uint64 { return s.rec.ID }

// MayEnd says whether the asking session may end a session: only sessions of the user that the service runs as, and of root, may. It returns a
// channel that is closed when that session has ended.
//
// Errors: [mempool.ErrDenied], [mempool.ErrNotFound], [mempool.ErrInvalid] for the asking session itself, [mempool.ErrClosed].
func (s *Session) MayEnd(id uint64) (over <-chan struct{}, err error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	if err := s.rec.Alive(); err != nil {
		return nil, err
	}
	target := ledger.Find(s.rec, svc.ledger.Sessions.Get(id))
	switch {
	case !s.rec.Owner:
		return nil, typed.Errorf(mempool.ErrDenied, "user %d may not end sessions: only the user that the service runs as may, user %d, and root", s.rec.Peer.UID, svc.uid)
	case target == s.rec:
		return nil, typed.Errorf(mempool.ErrInvalid, "session %d is the asking one: close its connection instead", id)
	case target == nil && (id == 0 || id > svc.ledger.Last.Session):
		return nil, typed.Errorf(mempool.ErrNotFound, "no session ever had the id %d", id)
	case target == nil:
		return nil, typed.Errorf(mempool.ErrNotFound, "session %d has ended already", id)
	}
	return svc.sessionOf(target).over, nil
}

// Allocate makes a buffer in a pool for the tensor t, and grants the session a write lease on the buffer. If the pool has no room, Allocate
// waits; the argument `wait` limits this time. If `recalled` is longer than `wait`, Allocate waits for up to the time `recalled` while the
// service has recalled blocks of the pool that sessions still map, and in any case for WantedTime. The deferred unlock writes the books.
//
// Errors: [mempool.ErrInvalid], [mempool.ErrNotFound], [mempool.ErrDenied], [mempool.ErrLimit], [mempool.ErrOutOfMemory],
// [mempool.ErrClosed], and the context's error. [mempool.ErrLimit] and [mempool.ErrOutOfMemory] also wrap [mempool.ErrRecalling] if a
// later try may succeed.
func (s *Session) Allocate(ctx context.Context, pool uint64, t mempool.Tensor, wait, recalled time.Duration) (g GrantedLease, err error) {
	least := time.Duration(0)
	if recalled > wait {
		least = max(wait, WantedTime)
		wait = max(least, recalled)
	}
	n, err := t.Extent()
	if err != nil {
		return g, err
	}
	w := newWaiter(ctx, s, wait, purpose{what: forRoom, bytes: n})
	w.least = least
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	p, err := svc.pools.usableLocked(s, pool)
	if err != nil {
		return g, err
	}
	if err := svc.ledger.MayAllocate(s.rec); err != nil {
		return g, err
	}
	w.purpose.pool, w.purpose.name = p.rec, p.rec.Info.Name
	block, err := p.take(w, n)
	if err != nil {
		return g, err
	}
	account := s.rec.Account(p.rec)
	if err := svc.ledger.MayAllocate(s.rec); err != nil { // other requests may have used up the limit while this one waited
		account.GiveUp(block)
		p.recycle(block)
		return g, err
	}
	b := svc.ledger.AddBuffer(block, account, s.rec.Describe(t), n, uint32(time.Since(svc.began)/time.Second))
	return s.grant(ctx, b, true), nil
}

// Release ends leases of the session. It ends every lease that it can end, and returns the error of the first lease that it cannot end. The
// fences in `done` say when the session's work on the memory is done. Release does not wait for the fences; the next user of the memory
// waits for them. If the argument `incomplete` is true, the session did not complete the contents of the buffers that it leased for
// writing. These buffers then count as failed.
//
// Errors: [mempool.ErrReleased] for a lease that the session does not have, [mempool.ErrInvalid] for fences of another session's timeline.
func (s *Session) Release(incomplete bool, done []mempool.Fence, ids ...uint64) error {
	s.svc.mu.Lock()
	defer s.svc.freeAndUnlock()
	var first error
	for _, id := range ids {
		l, err := s.rec.Lease(id)
		if err == nil {
			err = Lease{s, l}.endLocked(incomplete, done)
		}
		first = cmp.Or(first, err)
	}
	s.keepAnswerLocked(context.Background(), 0)
	return first
}

// Leave notes that the session's client is closed: the session's names are removed. The session's leases stay until they are released.
func (s *Session) Leave() {
	s.svc.mu.Lock()
	defer s.svc.freeAndUnlock()
	s.svc.removeNamesLocked(s.rec)
	s.keepAnswerLocked(context.Background(), 0)
}

// Dropped notes that the session no longer maps the blocks.
//
// Errors: [mempool.ErrBusy] if the session still has a lease on one of the blocks; then none of the blocks counts as dropped.
// [mempool.ErrClosed].
func (s *Session) Dropped(blocks []uint64) error {
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	if err := s.rec.Alive(); err != nil {
		return err
	}
	dropped, err := s.rec.MayDrop(blocks)
	if err != nil {
		return err
	}
	for b := range dropped {
		svc.pools.of(b.Pool).unmapLocked(s.rec, b)
	}
	s.keepAnswerLocked(context.Background(), 0)
	return nil
}
