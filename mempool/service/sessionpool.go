package service

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/eventlog"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// CreatePool makes a pool.
//
// Errors: [mempool.ErrInvalid], [mempool.ErrDenied], [mempool.ErrExists], [mempool.ErrLimit], [mempool.ErrUnavailable] if this machine
// has no memory of that kind, [mempool.ErrOutOfMemory], [mempool.ErrClosed].
func (s *Session) CreatePool(spec mempool.PoolSpec) (*Pool, error) {
	return s.svc.pools.create(context.Background(), s, spec, false)
}

// make makes a pool whose name is reserved, for a session.
func (ps *pools) make(ctx context.Context, s *Session, rec *ledger.Pool, spec mempool.PoolSpec) (*Pool, error) {
	svc := ps.svc
	defer svc.background.Done()
	backing, err := mempool.NewBacking(spec, svc.memory)
	err = svc.eventLog.Called(eventlog.CreateBacking, err)
	file := uint64(0)
	if err == nil {
		file = svc.descriptors.putBacking(backing)
	}
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	defer ps.made.broadcast() // after a failure too: sessions that wait for the pool check again
	if err != nil {
		svc.ledger.RemovePool(rec)
		return nil, err
	}
	svc.ledger.AddPool(rec, mempool.PoolInfo{Name: spec.Name, Kind: spec.Kind, Device: backing.Device(), MaxBytes: spec.MaxBytes,
		SessionBytes: spec.SessionBytes, UserBytes: spec.UserBytes}, backing.Granularity(), file)
	p := ps.add(rec, backing)
	s.noteUse()
	e := s.rec.About(mempool.PoolMade, "%s made pool %q of kind %s, of at most %s", s.rec.Who(), rec.Info.Name, rec.Info.Kind, bytesize.Text(rec.Info.MaxBytes))
	e.Bytes = rec.Info.MaxBytes
	svc.mu.note(e, rec)
	s.keepAnswerLocked(ctx, rec.Info.ID)
	if svc.closed {
		p.destroyLocked(nil)
		return nil, errShutdown
	}
	return p, nil
}

// add adds what is not plain of a pool.
func (ps *pools) add(rec *ledger.Pool, backing mempool.Backing) *Pool {
	p := &Pool{svc: ps.svc, rec: rec, backing: backing, closed: make(chan struct{}), room: roomQueue{mutex: &ps.svc.mu}}
	p.demand = demand{pool: p, wanting: make(map[*Session]int), dividers: make(map[*Session]struct{})}
	ps.all[rec.Info.ID] = p
	return p
}

// EnsurePool makes a pool. If a pool of that name exists and has the same settings, including the same users and groups, EnsurePool opens
// that pool. If another request is making the pool at this moment, EnsurePool waits for that request. A pool that is being destroyed counts
// as gone.
//
// Errors: the errors of [Session.CreatePool]; [mempool.ErrExists] says how the existing pool differs, or that a pool that the session may
// not see has the name; [mempool.ErrDenied] if the session sees the existing pool and may not use it; the context's error.
func (s *Session) EnsurePool(ctx context.Context, spec mempool.PoolSpec) (*Pool, error) {
	return s.svc.pools.create(ctx, s, spec, true)
}

// create makes a pool for a session. If `open` is true, it opens a pool that is there already and alike.
func (ps *pools) create(ctx context.Context, s *Session, spec mempool.PoolSpec, open bool) (*Pool, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	creator := ps.svc.mayCreate(s.rec.Peer) // without the lock, because it may be slow
	for {
		var p *Pool
		var rec *ledger.Pool
		var err error
		ps.svc.mu.Lock()
		if open {
			p, err = ps.namedLocked(ctx, s, spec.Name)
		}
		if p == nil && err == nil {
			rec, err = ps.reserveLocked(s.rec, spec, creator)
		}
		ps.svc.freeAndUnlock()
		switch {
		case err != nil:
			return nil, err
		case p == nil:
			return ps.make(ctx, s, rec, spec)
		}
		if err := p.alike(s.rec.Peer, spec); !p.isClosing() {
			return p, err
		}
		// destroyed meanwhile
	}
}

// isClosing says whether the pool is being destroyed.
func (p *Pool) isClosing() bool {
	p.svc.mu.Lock()
	defer p.svc.mu.Unlock()
	return p.rec.Closing
}

// namedLocked finds a pool by its name, and returns nil if the session sees no such pool. The session must be allowed to use the pool. If the
// pool is being made, namedLocked waits, and releases Service.mu during the wait.
func (ps *pools) namedLocked(ctx context.Context, s *Session, name string) (*Pool, error) {
	svc := ps.svc
	for {
		if err := s.rec.Alive(); err != nil {
			return nil, err
		}
		p := ledger.Find(s.rec, svc.ledger.PoolNames[name])
		if p == nil {
			return nil, nil
		}
		if p.Info.ID != 0 {
			return ps.usableLocked(s, p.Info.ID)
		}
		var err error
		changed := ps.made.next()
		svc.freeAndUnlock()
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

// reserveLocked reserves the name of a pool before the pool is made. From then on, Service.Close waits until the pool is made or could
// not be made. The argument `creator` says whether the session's user may make pools.
func (ps *pools) reserveLocked(of *ledger.Session, spec mempool.PoolSpec, creator bool) (*ledger.Pool, error) {
	s := ps.svc
	switch {
	case !creator:
		return nil, typed.Errorf(mempool.ErrDenied, "user %d may not create pools: name this user in --creator of the service", of.Peer.UID)
	case s.closed:
		return nil, errShutdown
	}
	if err := s.ledger.MayMakePool(of, spec.Name); err != nil {
		return nil, err
	}
	s.background.Add(1)
	return s.ledger.ReservePool(spec.Name, of.Peer.UID, accessOf(spec.Access, of.Peer)), nil
}

// OpenPool finds a pool by name. The session must be allowed to use the pool. OpenPool waits until the pool exists; the argument `wait`
// limits this time. If another request is making the pool, OpenPool waits until the pool is made, without a time limit.
//
// Errors: [mempool.ErrNotFound] (if `wait` is 0) or [mempool.ErrTimeout], [mempool.ErrDenied], the context's error.
func (s *Session) OpenPool(ctx context.Context, name string, wait time.Duration) (*Pool, error) {
	if err := mempool.ValidateName("pool", name); err != nil {
		return nil, err
	}
	w := newWaiter(ctx, s, wait, purpose{what: forPool, name: name})
	defer w.stop()
	svc := s.svc
	svc.mu.Lock()
	defer svc.mu.Unlock() // not svc.freeAndUnlock, which releases the lock to free memory: the pool could be destroyed meanwhile
	for waits := true; ; waits = w.wait(svc.pools.made.next()) {
		p, err := svc.pools.namedLocked(ctx, s, name)
		if p != nil || err != nil {
			return p, err
		}
		if waits {
			continue
		}
		return nil, w.cause(missing(wait, "there is no pool %[3]q that user %[1]d (group %[2]d) may use: make the pool, or have its maker name the user or the group "+
			"(uid=%[1]d or gid=%[2]d in --pool, uids and gids in Python)%[4]s", s.rec.Peer.UID, s.rec.Peer.GID, name,
			ledger.Similar(s.rec, name, maps.All(svc.ledger.PoolNames))))
	}
}

// FindPool finds a pool by its id. The session must be allowed to use the pool.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrDenied], [mempool.ErrClosed].
func (s *Session) FindPool(id uint64) (*Pool, error) {
	s.svc.mu.Lock()
	defer s.svc.freeAndUnlock()
	return s.svc.pools.usableLocked(s, id)
}

// usableLocked finds a pool that the session uses.
func (ps *pools) usableLocked(s *Session, id uint64) (*Pool, error) {
	p, err := ps.svc.ledger.UsablePool(s.rec, id)
	if err != nil {
		return nil, err
	}
	s.noteUse()
	return ps.of(p), nil
}

// missing returns the error of a request that names something that the session does not see. The arguments are those of [typed.Errorf].
func missing(wait time.Duration, format string, args ...any) error {
	if wait > 0 {
		return typed.Errorf(mempool.ErrTimeout, "waited %v: %s", wait, fmt.Sprintf(format, args...))
	}
	return typed.Errorf(mempool.ErrNotFound, format, args...)
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
	defer svc.freeAndUnlock()
	p, err := svc.ledger.SeenPool(s.rec, id)
	if err != nil {
		return err
	}
	if p.Maker != s.rec.Peer.UID && !s.rec.Owner && !creator {
		return typed.Errorf(mempool.ErrDenied, "user %d may not destroy pool %q: its maker (user %d) may, the service's user, and users who may use it and may make "+
			"pools", s.rec.Peer.UID, p.Info.Name, p.Maker)
	}
	svc.pools.of(p).destroyLocked(s)
	s.keepAnswerLocked(context.Background(), 0)
	return svc.reclaim.flush()
}

// destroyLocked ends a pool. The argument `by` is the session that asked to destroy the pool, or nil for the service itself.
func (p *Pool) destroyLocked(by *Session) {
	if p.rec.Closing {
		return
	}
	e, who, why := mempool.HistoryEvent{Kind: mempool.PoolDestroyed}, "the service", "the service ended"
	if by != nil {
		by.noteUse()
		who = by.rec.Who()
		e, why = by.rec.About(mempool.PoolDestroyed, ""), who+" destroyed its pool"
	}
	e.Text, e.Bytes = fmt.Sprintf("%s destroyed pool %q, of which %s were in use", who, p.rec.Info.Name, bytesize.Text(p.rec.Leased)), p.rec.Leased
	p.svc.mu.note(e, p.rec)
	p.rec.Close()
	p.demand.tell()
	p.svc.channels.endLocked(p.rec, why)
	for n := range p.svc.ledger.Names.All() {
		if n.Buffer.Block.Pool == p.rec {
			p.svc.removeNameLocked(n)
		}
	}
	p.room.broadcast()
	p.retire(p.rec.Cached, false)
	p.closeIfEmpty()
}

// TrimPool frees unused blocks until at most `keep` bytes of unused blocks are left, and returns how many bytes it has freed. A chosen block
// that sessions still map, or on which work is under way, is freed later, and the result does not count it. Blocks whose memory is a file of
// an earlier service go together, when no block of the file is used any more.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrDenied], [mempool.ErrClosed]; the driver's error for blocks that the driver failed to free:
// the next call of TrimPool tries again to free them.
func (s *Session) TrimPool(id, keep uint64) (uint64, error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	p, err := svc.pools.usableLocked(s, id)
	if err != nil {
		return 0, err
	}
	return p.freeCached(p.rec.Cached-min(p.rec.Cached, keep), false)
}
