package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/journal"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// CreatePool makes a pool.
//
// Errors: [mempool.ErrInvalid], [mempool.ErrDenied], [mempool.ErrExists], [mempool.ErrLimit], [mempool.ErrUnavailable] if this machine
// has no memory of that kind, [mempool.ErrOutOfMemory], [mempool.ErrClosed].
func (s *Session) CreatePool(spec mempool.PoolSpec) (*Pool, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	svc := s.svc
	if !svc.mayCreate(s.rec.Peer) {
		return nil, situation.Of(mempool.ErrDenied, "user %d may not create pools", s.rec.Peer.UID)
	}
	rec, err := svc.reservePool(s, spec)
	if err != nil {
		return nil, err
	}
	defer svc.background.Done()
	arena, err := mempool.NewArena(spec, svc.memory)
	err = svc.journal.Called(journal.CreateArena, err)
	svc.mu.Lock()
	defer svc.unlock()
	defer svc.pooled.broadcast() // after a failure too: sessions that wait for the pool check again
	if err != nil {
		svc.ledger.RemovePool(rec)
		return nil, err
	}
	svc.ledger.AddPool(rec, mempool.PoolInfo{Name: spec.Name, Kind: spec.Kind, Device: arena.Device(), MaxBytes: spec.MaxBytes,
		SessionBytes: spec.SessionBytes, UserBytes: spec.UserBytes}, arena.Granularity())
	p := &Pool{svc: svc, rec: rec, arena: arena, closed: make(chan struct{}), waiters: waiters{mutex: &svc.mu}}
	svc.pools[rec.Info.ID] = p
	s.noteUse()
	e := s.rec.About(mempool.PoolMade, "%s made pool %q of kind %s, of at most %s", s.rec.Who(), rec.Info.Name, rec.Info.Kind, bytesize.Text(rec.Info.MaxBytes))
	e.Bytes = rec.Info.MaxBytes
	svc.note(e, rec)
	if svc.closed {
		svc.destroy(p, nil)
		return nil, errShutdown
	}
	return p, nil
}

// EnsurePool makes a pool. If a pool of that name exists and has the same settings, including the same users and groups, EnsurePool opens
// that pool. If another request is making the pool at this moment, EnsurePool waits for that request. A pool that is being destroyed counts
// as gone.
//
// Errors: the errors of [Session.CreatePool]; [mempool.ErrExists] says how the existing pool differs, or that a pool that the session may
// not see has the name; [mempool.ErrDenied] if the session sees the existing pool and may not use it; the context's error.
func (s *Session) EnsurePool(ctx context.Context, spec mempool.PoolSpec) (*Pool, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	svc := s.svc
	for {
		svc.mu.Lock()
		p, err := s.namedPool(ctx, spec.Name)
		svc.unlock()
		if err != nil {
			return nil, err
		}
		if p != nil {
			err := p.alike(s.rec.Peer, spec)
			if p.isClosing() { // destroyed meanwhile
				continue
			}
			return p, err
		}
		p, err = s.CreatePool(spec)
		if !errors.Is(err, mempool.ErrExists) || s.poolNameTaken(spec.Name) != nil {
			return p, err
		}
		// another session has just begun to make the pool
	}
}

// poolNameTaken returns an error if a pool that the session may not see has the name.
func (s *Session) poolNameTaken(name string) error {
	s.svc.mu.Lock()
	defer s.svc.mu.Unlock()
	_, err := ledger.Claim(s.rec, "pool", name, s.svc.ledger.PoolNames[name])
	return err
}

// isClosing says whether the pool is being destroyed.
func (p *Pool) isClosing() bool {
	p.svc.mu.Lock()
	defer p.svc.mu.Unlock()
	return p.rec.Closing
}

// namedPool finds a pool by its name, and returns nil if the session sees no such pool. The session must be allowed to use the pool. If the
// pool is being made, namedPool waits, and releases Service.mu during the wait. The caller holds Service.mu.
func (s *Session) namedPool(ctx context.Context, name string) (*Pool, error) {
	svc := s.svc
	for {
		if err := s.rec.Alive(); err != nil {
			return nil, err
		}
		p := ledger.Find(s.rec, svc.ledger.PoolNames[name])
		if p == nil {
			return nil, nil
		}
		if p.Info.ID != 0 {
			if !p.Access.Allows(s.rec.Peer) {
				return nil, p.Denied(s.rec.Peer)
			}
			s.noteUse()
			return svc.poolOf(p), nil
		}
		var err error
		changed := svc.pooled.next()
		svc.unlock()
		select {
		case <-changed:
		case <-s.over:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		svc.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
}

// reservePool reserves the name of a pool before the pool is made. From then on, Service.Close waits until the pool is made or could not be
// made.
func (s *Service) reservePool(session *Session, spec mempool.PoolSpec) (*ledger.Pool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errShutdown
	}
	if err := session.rec.Alive(); err != nil {
		return nil, err
	}
	old, err := ledger.Claim(session.rec, "pool", spec.Name, s.ledger.PoolNames[spec.Name])
	switch {
	case err != nil:
		return nil, err
	case old != nil:
		return nil, situation.Of(mempool.ErrExists, "there is a pool %q already; open it (EnsurePool in Go and exist_ok=True in Python "+
			"open one that is alike), or choose another name", spec.Name)
	}
	if err := s.ledger.MayMakePool(session.rec); err != nil {
		return nil, err
	}
	s.background.Add(1)
	return s.ledger.ReservePool(spec.Name, session.rec.Peer.UID, accessOf(spec.Access, session.rec.Peer)), nil
}

// OpenPool finds a pool by name. The session must be allowed to use the pool. OpenPool waits until the pool exists; the argument `wait`
// limits this time. If another request is making the pool, OpenPool waits until the pool is made, without a time limit.
//
// Errors: [mempool.ErrNotFound] (if `wait` is 0) or [mempool.ErrTimeout], [mempool.ErrDenied], the context's error.
func (s *Session) OpenPool(ctx context.Context, name string, wait time.Duration) (*Pool, error) {
	if err := mempool.ValidateName("pool", name); err != nil {
		return nil, err
	}
	w := s.newWaiter(ctx, wait, purpose{what: forPool, name: name})
	defer w.stop()
	svc := s.svc
	svc.mu.Lock()
	defer svc.mu.Unlock() // not svc.unlock, which releases the lock to free memory: the pool could be destroyed meanwhile
	for waits := true; ; waits = w.wait(svc.pooled.next()) {
		p, err := s.namedPool(ctx, name)
		if p != nil || err != nil {
			return p, err
		}
		if waits {
			continue
		}
		return nil, w.cause(missing(wait, "there is no pool %[3]q that user %[1]d (group %[2]d) may use: make the pool, or have its maker name the user or the group "+
			"(uid=%[1]d or gid=%[2]d in --pool, uids and gids in Python)", s.rec.Peer.UID, s.rec.Peer.GID, name))
	}
}

// FindPool finds a pool by its id. The session must be allowed to use the pool.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrDenied], [mempool.ErrClosed].
func (s *Session) FindPool(id uint64) (*Pool, error) {
	s.svc.mu.Lock()
	defer s.svc.unlock()
	return s.pool(id)
}

// pool does the same as FindPool. The caller holds Service.mu.
func (s *Session) pool(id uint64) (*Pool, error) {
	p, err := s.seenPool(id)
	switch {
	case err != nil:
		return nil, err
	case !p.rec.Access.Allows(s.rec.Peer):
		return nil, p.rec.Denied(s.rec.Peer)
	}
	s.noteUse()
	return p, nil
}

// seenPool finds a pool that the session may see, by id. The caller holds Service.mu.
func (s *Session) seenPool(id uint64) (*Pool, error) {
	if err := s.rec.Alive(); err != nil {
		return nil, err
	}
	if of := ledger.Find(s.rec, s.svc.ledger.Pools[id]); of != nil {
		if p := s.svc.poolOf(of); !p.ending {
			return p, nil
		}
	}
	return nil, situation.Of(mempool.ErrNotFound, "there is no pool %d that user %d may use", id, s.rec.Peer.UID)
}

// missing returns the error of a request that names something that the session does not see. The arguments are those of [situation.Of].
func missing(wait time.Duration, format string, args ...any) error {
	if wait > 0 {
		return situation.Of(mempool.ErrTimeout, "waited %v: %s", wait, fmt.Sprintf(format, args...))
	}
	return situation.Of(mempool.ErrNotFound, format, args...)
}

// DestroyPool ends a pool: no session can allocate buffers in the pool any more, the service removes the names of its buffers immediately,
// and frees its memory when the last lease and the last mapping have ended.
//
// The user who made a pool, the user that the service runs as, and root may always destroy the pool, even if its access list does not name
// them. Every other user must be allowed to make pools and to use this pool.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrDenied], [mempool.ErrClosed]; the driver's error if memory could not be freed: the pool ends
// in this case too.
func (s *Session) DestroyPool(id uint64) error {
	svc := s.svc
	creator := svc.mayCreate(s.rec.Peer) // without the lock, because it may be slow
	svc.mu.Lock()
	defer svc.unlock()
	p, err := s.seenPool(id)
	if err != nil {
		return err
	}
	if p.rec.Maker != s.rec.Peer.UID && !s.rec.Owner && !creator {
		return situation.Of(mempool.ErrDenied, "user %d may not destroy pool %q: its maker (user %d) may, the service's user, and users who may use it and may make "+
			"pools", s.rec.Peer.UID, p.rec.Info.Name, p.rec.Maker)
	}
	svc.destroy(p, s)
	return svc.flush()
}

// destroy ends a pool. The argument `by` is the session that asked to destroy the pool, or nil for the service itself. The caller holds
// s.mu.
func (s *Service) destroy(p *Pool, by *Session) {
	if p.rec.Closing {
		return
	}
	e, who := mempool.HistoryEvent{Kind: mempool.PoolDestroyed}, "the service"
	if by != nil {
		by.noteUse()
		who = by.rec.Who()
		e = by.rec.About(mempool.PoolDestroyed, "")
	}
	e.Text, e.Bytes = fmt.Sprintf("%s destroyed pool %q, of which %s were in use", who, p.rec.Info.Name, bytesize.Text(p.rec.Leased)), p.rec.Leased
	s.note(e, p.rec)
	s.ledger.ClosePool(p.rec)
	p.tellProducers()
	s.endChannels(p)
	for n := range s.ledger.Names.All() {
		if n.Buffer.Block.Pool == p.rec {
			s.removeName(n)
		}
	}
	p.waiters.broadcast()
	p.retire(p.rec.Cached, false)
	p.closeIfEmpty()
}

// TrimPool frees unused blocks until at most `keep` bytes of unused blocks are left, and returns how many bytes it has freed. If sessions
// still map some of the blocks that TrimPool chooses, the service frees these blocks later, when the sessions have dropped them. The result
// does not count these blocks.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrDenied], [mempool.ErrClosed]; the driver's error for blocks that the driver failed to free:
// the next call of TrimPool tries again to free them.
func (s *Session) TrimPool(id, keep uint64) (uint64, error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	p, err := s.pool(id)
	if err != nil {
		return 0, err
	}
	return p.freeCached(p.rec.Cached-min(p.rec.Cached, keep), false)
}
