package mempool

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"sync"
	"time"
)

// Epoch identifies one life of a service: every id is meant within an epoch.
type Epoch [16]byte

func (e Epoch) String() string { return hex.EncodeToString(e[:]) }

// Config configures a [Service]. Its zero value is useful.
type Config struct {
	// Log takes what nobody can be told as an error; nil for none of it.
	Log *slog.Logger
	// MayCreate says who may make and destroy pools; nil for only the user that the service runs as.
	MayCreate func(Peer) bool
}

// Service holds the pools, buffers and sessions of one epoch. Its methods may be called from several goroutines.
type Service struct {
	epoch     Epoch
	log       *slog.Logger
	mayCreate func(Peer) bool

	mu                                                      sync.Mutex
	pools                                                   map[string]*Pool // those not being destroyed
	poolByID                                                map[uint64]*Pool // and those that are
	sessions                                                map[uint64]*Session
	buffers                                                 map[uint64]*buffer
	names                                                   map[string]*name
	named                                                   signal // names appeared
	pooled                                                  signal // pools appeared
	settled                                                 signal // a departed session's process is gone
	leases                                                  int
	departed                                                int
	lastPool, lastBlock, lastBuffer, lastLease, lastSession uint64

	closed     bool
	closing    chan struct{}
	background sync.WaitGroup
}

// NewService starts an epoch.
func NewService(c Config) *Service {
	s := &Service{
		log: c.Log, mayCreate: c.MayCreate,
		pools: make(map[string]*Pool), poolByID: make(map[uint64]*Pool), sessions: make(map[uint64]*Session),
		buffers: make(map[uint64]*buffer), names: make(map[string]*name), closing: make(chan struct{}),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.mayCreate == nil {
		self := Self()
		s.mayCreate = func(p Peer) bool { return p.UID == self.UID }
	}
	_, _ = rand.Read(s.epoch[:]) // never fails
	return s
}

// Epoch identifies this life of the service.
func (s *Service) Epoch() Epoch { return s.epoch }

// OpenSession makes a session for a peer. notify is told what the service has to say to it; it is called with locks held,
// so it must neither block nor call back; nil for a session in the service's own process, which maps nothing.
//
// Errors: [ErrClosed].
func (s *Service) OpenSession(p Peer, notify func(Notice)) (*Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, situation(ErrClosed, "the service is shutting down")
	}
	s.lastSession++
	session := &Session{svc: s, id: s.lastSession, peer: p, notify: notify, settled: make(chan struct{}), leases: make(map[uint64]*Lease),
		names: make(map[string]*name), mapped: make(map[uint64]*block), owned: make(map[*buffer]struct{}), charged: make(map[*Pool]uint64)}
	s.sessions[session.id] = session
	return session, nil
}

// CreatePool makes a pool.
//
// Errors: [ErrInvalid], [ErrDenied], [ErrExists], [ErrUnavailable] where this machine cannot do it, [ErrOutOfMemory],
// [ErrClosed].
func (s *Session) CreatePool(spec PoolSpec) (*Pool, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	svc := s.svc
	if !svc.mayCreate(s.peer) {
		return nil, situation(ErrDenied, "user %d may not create pools", s.peer.UID)
	}
	backend, err := spec.Kind.backend()
	if err != nil {
		return nil, err
	}
	p := &Pool{svc: svc, access: spec.Access.clone(), free: make(map[uint64][]*block), closed: make(chan struct{})}
	if p.access.empty() {
		p.access.UIDs = []uint32{s.peer.UID}
	}
	if err := svc.reserveName(s, spec.Name, p); err != nil {
		return nil, err
	}
	arena, err := backend.create(spec)
	svc.mu.Lock()
	defer svc.mu.Unlock()
	if err == nil && svc.closed {
		err = situation(ErrClosed, "the service is shutting down")
		if cerr := arena.Close(); cerr != nil {
			svc.log.Error("a pool could not be closed", "pool", spec.Name, "error", cerr)
		}
	}
	if err != nil {
		delete(svc.pools, spec.Name)
		return nil, err
	}
	svc.lastPool++
	p.arena = arena
	p.info = PoolInfo{ID: svc.lastPool, Name: spec.Name, Kind: spec.Kind, Device: arena.Device(), MaxBytes: spec.MaxBytes,
		SessionBytes: spec.SessionBytes}
	svc.poolByID[p.info.ID] = p
	svc.pooled.broadcast()
	return p, nil
}

// reserveName takes a pool's name while the pool is being made.
func (s *Service) reserveName(session *Session, name string, p *Pool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := session.alive(); err != nil {
		return err
	}
	if s.pools[name] != nil {
		return situation(ErrExists, "there is a pool %q already; open it, or choose another name", name)
	}
	s.pools[name] = p
	return nil
}

// OpenPool finds a pool by name that the session may use, and waits up to wait for it to appear.
//
// Errors: [ErrNotFound] (with wait 0) or [ErrTimeout], [ErrDenied], the context's.
func (s *Session) OpenPool(ctx context.Context, name string, wait time.Duration) (*Pool, error) {
	if err := validateName("pool", name); err != nil {
		return nil, err
	}
	w := newWaiter(ctx, wait)
	defer w.stop()
	svc := s.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	for {
		if err := s.alive(); err != nil {
			return nil, err
		}
		if p := svc.pools[name]; p != nil && p.info.ID != 0 {
			if !p.access.Allows(s.peer) {
				return nil, p.denied(s.peer)
			}
			return p, nil
		}
		err := situation(ErrNotFound, "there is no pool %q", name)
		if wait > 0 {
			err = situation(ErrTimeout, "waited %v: there is no pool %q", wait, name)
		}
		if !w.wait(&svc.mu, svc.pooled.next()) {
			return nil, w.cause(err)
		}
	}
}

// FindPool finds a pool by id that the session may use.
//
// Errors: [ErrNotFound], [ErrDenied].
func (s *Session) FindPool(id uint64) (*Pool, error) { return s.pool(id) }

func (p *Pool) denied(peer Peer) error {
	return situation(ErrDenied, "pool %q is not open to user %d (group %d); its access list is set when it is made",
		p.info.Name, peer.UID, peer.GID)
}

// DestroyPool ends a pool: nothing new can be allocated in it, its names go at once, and its memory goes with the last
// lease and mapping.
//
// Errors: [ErrNotFound], [ErrDenied].
func (s *Session) DestroyPool(id uint64) error {
	p, err := s.pool(id)
	if err != nil {
		return err
	}
	svc := s.svc
	if !svc.mayCreate(s.peer) {
		return situation(ErrDenied, "user %d may not destroy pools", s.peer.UID)
	}
	svc.mu.Lock()
	defer svc.mu.Unlock()
	svc.destroy(p)
	return nil
}

// destroy ends a pool. s.mu is held, and released for driver calls.
func (s *Service) destroy(p *Pool) {
	if p.closing {
		return
	}
	p.closing = true
	delete(s.pools, p.info.Name)
	var names []*name
	for text, n := range s.names {
		if n.buffer.block.pool == p {
			delete(s.names, text)
			names = append(names, n)
		}
	}
	for _, n := range names {
		n.drop(nil)
	}
	p.room.broadcast()
	p.evict(p.cached)
	p.closeIfEmpty()
}

// TrimPool gives unused blocks back until at most keep bytes of them are cached, and returns how many bytes were given
// back at once. Blocks that sessions still map follow when they have dropped them.
//
// Errors: [ErrNotFound], [ErrDenied].
func (s *Session) TrimPool(id, keep uint64) (uint64, error) {
	p, err := s.pool(id)
	if err != nil {
		return 0, err
	}
	svc := s.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	before := p.reserved
	if p.cached > keep {
		p.evict(p.cached - keep)
	}
	return before - min(before, p.reserved), nil
}

// Close ends every session and gives all memory back, mapped elsewhere or not: nothing is allocated any more that could
// be mistaken for it.
func (s *Service) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	close(s.closing)
	sessions := make([]*Session, 0, len(s.sessions))
	for _, session := range s.sessions {
		sessions = append(sessions, session)
	}
	s.mu.Unlock()
	for _, session := range sessions {
		session.End(nil)
	}
	s.background.Wait()
	s.mu.Lock()
	pools := make([]*Pool, 0, len(s.poolByID))
	for _, p := range s.poolByID {
		pools = append(pools, p)
	}
	for _, p := range pools {
		s.destroy(p)
	}
	s.mu.Unlock()
	for _, p := range pools {
		<-p.closed
	}
}
