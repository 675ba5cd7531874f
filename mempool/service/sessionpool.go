package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// CreatePool makes a pool.
//
// Errors: [mempool.ErrInvalid], [mempool.ErrDenied], [mempool.ErrExists], [mempool.ErrLimit], [mempool.ErrUnavailable] where this machine
// cannot do it, [mempool.ErrOutOfMemory], [mempool.ErrClosed].
func (s *Session) CreatePool(spec mempool.PoolSpec) (*Pool, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	svc := s.svc
	if !svc.mayCreate(s.peer) {
		return nil, situation.Of(mempool.ErrDenied, "user %d may not create pools", s.peer.UID)
	}
	p := &Pool{svc: svc, poolAccess: &poolAccess{s.peer.UID, accessOf(spec.Access, s.peer)}, cache: make(map[uint64][]*block),
		pending: make(map[uint64]*pending), users: make(tally), charged: make(map[*block]struct{}), closed: make(chan struct{}),
		waiters: waiters{mutex: &svc.mu}}
	if err := svc.reserveName(s, spec.Name, p); err != nil {
		return nil, err
	}
	defer svc.background.Done()
	arena, err := mempool.NewArena(spec, svc.memory)
	err = svc.driver.called(createArena, err)
	svc.mu.Lock()
	defer svc.unlock()
	defer svc.pooled.broadcast() // made or not: the sessions that wait for it look again
	if err != nil {
		delete(svc.pools, spec.Name)
		svc.poolsOf.add(p.uid, -1)
		return nil, err
	}
	svc.lastPool++
	p.arena = arena
	p.info = mempool.PoolInfo{ID: svc.lastPool, Name: spec.Name, Kind: spec.Kind, Device: arena.Device(), MaxBytes: spec.MaxBytes,
		SessionBytes: spec.SessionBytes, UserBytes: spec.UserBytes}
	svc.poolByID[p.info.ID] = p
	s.noteUse()
	e := s.about(mempool.PoolMade, "%s made pool %q of kind %s, of at most %s", s.who(), p.info.Name, p.info.Kind, bytesize.Text(p.info.MaxBytes))
	e.Bytes = p.info.MaxBytes
	svc.note(e, p)
	if svc.closed {
		svc.destroy(p, nil)
		return nil, errShutdown
	}
	return p, nil
}

// EnsurePool makes a pool, or opens the one of that name that is just like it. One that is being made at this moment is
// waited for. One that is being destroyed counts as gone. The access list, too, must name the same users and groups.
//
// Errors: those of [Session.CreatePool], of which [mempool.ErrExists] names how the pool that is there differs; [mempool.ErrDenied] where the
// session may not use that; the context's.
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
			err := p.alike(s.peer, spec)
			if p.isClosing() { // destroyed meanwhile
				continue
			}
			return p, err
		}
		p, err = s.CreatePool(spec)
		if !errors.Is(err, mempool.ErrExists) { // else another session began to make it just now
			return p, err
		}
	}
}

// isClosing says whether the pool is being destroyed.
func (p *Pool) isClosing() bool {
	p.svc.mu.Lock()
	defer p.svc.mu.Unlock()
	return p.closing
}

// namedPool is the pool of a name that the session may use, once it is made; nil where there is none. Service.mu is held, and
// released while the pool is being made.
func (s *Session) namedPool(ctx context.Context, name string) (*Pool, error) {
	svc := s.svc
	for {
		if err := s.alive(); err != nil {
			return nil, err
		}
		p := svc.pools[name]
		if p == nil {
			return nil, nil
		}
		if p.info.ID != 0 {
			if !p.access.Allows(s.peer) {
				return nil, p.denied(s.peer)
			}
			s.noteUse()
			return p, nil
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

// reserveName takes a pool's name while the pool is being made, which Service.Close waits for.
func (s *Service) reserveName(session *Session, name string, p *Pool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errShutdown
	}
	if err := session.alive(); err != nil {
		return err
	}
	if s.pools[name] != nil {
		return situation.Of(mempool.ErrExists, "there is a pool %q already; open it (EnsurePool in Go and exist_ok=True in Python "+
			"open one that is alike), or choose another name", name)
	}
	if err := session.mayMakePool(); err != nil {
		return err
	}
	s.pools[name] = p
	s.poolsOf.add(p.uid, 1)
	s.background.Add(1)
	return nil
}

// OpenPool finds a pool by name that the session may use, and waits up to wait for it to appear. One that is being made
// counts as there: it is waited for until it is made, however long that takes.
//
// Errors: [mempool.ErrNotFound] (with wait 0) or [mempool.ErrTimeout], [mempool.ErrDenied], the context's.
func (s *Session) OpenPool(ctx context.Context, name string, wait time.Duration) (*Pool, error) {
	if err := mempool.ValidateName("pool", name); err != nil {
		return nil, err
	}
	w := s.newWaiter(ctx, wait, purpose{what: forPool, name: name})
	defer w.stop()
	svc := s.svc
	svc.mu.Lock()
	defer svc.mu.Unlock() // and nothing is carried out that is due: the pool could be destroyed meanwhile
	for waits := true; ; waits = w.wait(svc.pooled.next()) {
		p, err := s.namedPool(ctx, name)
		if p != nil || err != nil {
			return p, err
		}
		if waits {
			continue
		}
		err = situation.Of(mempool.ErrNotFound, "there is no pool %q", name)
		if wait > 0 {
			err = situation.Of(mempool.ErrTimeout, "waited %v: there is no pool %q", wait, name)
		}
		return nil, w.cause(err)
	}
}

// FindPool finds a pool by id that the session may use.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrDenied], [mempool.ErrClosed].
func (s *Session) FindPool(id uint64) (*Pool, error) {
	s.svc.mu.Lock()
	defer s.svc.unlock()
	return s.pool(id)
}

// pool is FindPool with Service.mu held.
func (s *Session) pool(id uint64) (*Pool, error) {
	p, err := s.anyPool(id)
	switch {
	case err != nil:
		return nil, err
	case !p.access.Allows(s.peer):
		return nil, p.denied(s.peer)
	}
	s.noteUse()
	return p, nil
}

// anyPool finds a pool whether or not the session may use it. Service.mu is held.
func (s *Session) anyPool(id uint64) (*Pool, error) {
	if err := s.alive(); err != nil {
		return nil, err
	}
	p := s.svc.poolByID[id]
	if p == nil || p.ending {
		return nil, situation.Of(mempool.ErrNotFound, "there is no pool %d", id)
	}
	return p, nil
}

func (p *Pool) denied(peer mempool.Peer) error {
	return situation.Of(mempool.ErrDenied, "pool %[1]q is not open to user %[2]d (group %[3]d): who may use a pool is said when it is made, with its access list "+
		"(uid=%[2]d or gid=%[3]d in --pool, uids and gids in Python)", p.info.Name, peer.UID, peer.GID)
}

// DestroyPool ends a pool: nothing new can be allocated in it, its names go at once, and its memory goes with the last
// lease and mapping.
//
// A pool's maker and the service's own user may do so whether or not they may use the pool. Other users must be allowed to make
// pools and to use this one.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrDenied], [mempool.ErrClosed]; the driver's where memory could not be given back, which does not keep
// the pool.
func (s *Session) DestroyPool(id uint64) error {
	svc := s.svc
	creator := svc.mayCreate(s.peer)
	svc.mu.Lock()
	defer svc.unlock()
	p, err := s.anyPool(id)
	if err != nil {
		return err
	}
	if !p.mayDestroy(s.peer, creator) {
		return situation.Of(mempool.ErrDenied, "user %d may not destroy pool %q: its maker, user %d, may, the service's user, and users who may use it and make pools",
			s.peer.UID, p.info.Name, p.uid)
	}
	svc.destroy(p, s)
	return svc.flush()
}

// destroy ends a pool, for a session, or nil for the service itself. s.mu is held.
func (s *Service) destroy(p *Pool, by *Session) {
	if p.closing {
		return
	}
	e, who := mempool.HistoryEvent{Kind: mempool.PoolDestroyed}, "the service"
	if by != nil {
		by.noteUse()
		who = by.who()
		e = by.about(mempool.PoolDestroyed, "")
	}
	e.Text, e.Bytes = fmt.Sprintf("%s destroyed pool %q, of which %s were in use", who, p.info.Name, bytesize.Text(p.leased)), p.leased
	s.note(e, p)
	p.closing = true
	delete(s.pools, p.info.Name)
	p.ask(true)
	s.endChannels(p)
	for _, n := range s.names {
		if n.buffer.block.pool == p {
			n.remove()
		}
	}
	p.waiters.broadcast()
	p.retire(p.cached, false)
	p.closeIfEmpty()
}

// TrimPool gives unused blocks back until at most keep bytes of them are cached, and returns how many bytes were given
// back at once. Blocks that sessions still map follow when they have dropped them.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrDenied], [mempool.ErrClosed]; the driver's for blocks that could not be given back, which are tried
// again the next time.
func (s *Session) TrimPool(id, keep uint64) (uint64, error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	p, err := s.pool(id)
	if err != nil {
		return 0, err
	}
	return p.giveBack(p.cached-min(p.cached, keep), false)
}
