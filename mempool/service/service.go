package service

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/internal/failpoint"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/hostmem"
	"github.com/poolbridge/poolbridge/mempool/service/eventlog"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// Limits says how many leases, names, channels and other things clients may have in the service. More: go doc [ledger.Limits].
type Limits = ledger.Limits

// LimitError says which of the [Limits] a request would have exceeded. It wraps [mempool.ErrLimit]. More: go doc
// [ledger.LimitError].
type LimitError = ledger.LimitError

// LimitNames returns the names that [Limits.Set] accepts.
func LimitNames() []string { return ledger.LimitNames() }

// Config configures a [Service]. The zero Config is valid.
type Config struct {
	// Log gets the events, and the errors that no client gets. If Log is nil, the service logs nothing.
	Log *slog.Logger
	// MayCreate says which users may make pools. These users may also destroy the pools that they may use. If MayCreate is nil, only the
	// user that the service runs as may make pools. That user may always destroy pools.
	MayCreate func(mempool.Peer) bool
	// Patience is the time after which the service notes an event about a session that waits for a lease or for room, or about a subscriber
	// that is so slow that its channel has no room for another frame; 0 stands for 10 seconds.
	Patience time.Duration
	// Limits says how many leases, names, channels and other things clients may have.
	Limits Limits
	// Store keeps what a successor of this process needs, if this process dies. If Store is nil, everything ends with this process.
	Store Store
	// Takeovers is how often processes have taken over from each other until this one did.
	Takeovers uint64
	// ResumeTime is how long a session of a predecessor waits for its client; 0 stands for 10 seconds.
	ResumeTime time.Duration
}

// New makes a service. Each service has its own epoch.
func New(c Config) *Service {
	s := newStopped(c)
	_, _ = rand.Read(s.epoch[:]) // never fails
	s.openBooks()
	return s
}

func newStopped(c Config) *Service {
	events := eventlog.New(c.Log)
	s := &Service{
		began: time.Now(), uid: mempool.Self().UID, mayCreate: c.MayCreate, ledger: ledger.New(c.Limits), memory: hostmem.New(),
		closing: make(chan struct{}), done: make(chan struct{}), sessions: make(map[uint64]*Session),
		changed: make(changes), broken: make(broken), waiting: make(map[string]int),
		mu: mutex{eventLog: events}, eventLog: events, patience: cmp.Or(c.Patience, usualPatience),
	}
	s.pools = pools{svc: s, all: make(map[uint64]*Pool)}
	s.awaited = awaitedNames{svc: s, all: make(map[string]*awaitedName)}
	s.reclaim.svc = s
	s.channels = channels{svc: s, all: make(map[uint64]*channel), pending: make(map[string][]*pendingJoin)}
	s.draining = draining{svc: s, next: make(map[*ledger.Block]func())}
	if _, on := os.LookupEnv("POOLBRIDGE_CHECK_LEASES"); on {
		s.ledger.NoteChanges()
		s.mu.check = (&audit{svc: s}).look
	}
	if s.mayCreate == nil {
		s.mayCreate = func(p mempool.Peer) bool { return p.UID == s.uid }
	}
	s.descriptors.svc, s.descriptors.store, s.takeovers = s, c.Store, c.Takeovers
	var up unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) // never fails
	s.descriptors.last.Store(uint64(up.Nano() / 1e6))
	s.resumeTime = cmp.Or(c.ResumeTime, 10*time.Second)
	return s
}

// firstGeneration returns the generation of a block's first buffer. Services begin with different generations, so that a buffer is not taken for
// one with the same id of another service. Generations fit into the numbers of JSON, which are exact below 2^53.
func firstGeneration(epoch mempool.Epoch) uint64 {
	return 1 + uint64(binary.BigEndian.Uint32(epoch[:]))<<20
}

// Epoch returns the epoch of the service. After a restart, the service has another epoch.
func (s *Service) Epoch() mempool.Epoch { return s.epoch }

// OpenSession makes a session for a peer. The argument `program` is the name of the client's program. OpenSession cuts the name to
// [mempool.MaxNameBytes], so that the name fits into a page of a list. The service calls `notify` with each notice for the session. The service holds locks while it
// calls `notify`, so `notify` must neither wait nor call the service. If `notify` is nil, the session gets no notices, and the session's
// client must not map any memory.
//
// Errors: [mempool.ErrClosed].
func (s *Service) OpenSession(p mempool.Peer, program string, notify func(Notice)) (*Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errShutdown
	}
	if len(program) > mempool.MaxNameBytes {
		program = strings.ToValidUTF8(program[:mempool.MaxNameBytes], "")
	}
	session := &Session{svc: s, rec: s.ledger.OpenSession(p, s.Owns(p.UID), time.Now()), notify: notify, over: make(chan struct{}),
		reclaimed: make(chan struct{})}
	session.rec.Program = program
	_, _ = rand.Read(session.rec.Token[:])
	s.sessions[session.rec.ID] = session
	return session, nil
}

// Owns says whether a user is the user that the service runs as, or root.
func (s *Service) Owns(uid uint32) bool { return uid == s.uid || uid == 0 }

// MaxSessions returns how many sessions a user may have.
func (s *Service) MaxSessions(p mempool.Peer) int {
	if s.Owns(p.UID) {
		return math.MaxInt
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Limits.UserSessions
}

// Files returns the greatest number of file descriptors that the service can need for its channels.
func (s *Service) Files() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return 2*s.ledger.Limits.Channels + s.ledger.Limits.Members
}

// SetLimits replaces all limits of the service. Leases, names and other things that exist already stay, even if there are more of them than
// a new limit allows.
func (s *Service) SetLimits(l Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.Limits = l.Filled()
}

// Close ends every session and frees all memory. It does not wait until clients have unmapped the memory: a client can still read the
// memory that it maps, and no later allocation can reuse that memory.
func (s *Service) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.done
		return
	}
	defer close(s.done)
	s.closed = true
	close(s.closing)
	for _, p := range s.pools.all {
		if a, ok := p.backing.(mempool.Lasting); ok {
			a.Last()
		}
	}
	sessions := make([]*Session, 0, s.ledger.Sessions.Len())
	for of := range s.ledger.Sessions.All() {
		sessions = append(sessions, s.sessionOf(of))
	}
	s.mu.Unlock()
	for _, session := range sessions {
		session.End(mempool.SessionShutdown, "", nil)
	}
	s.background.Wait()
	s.mu.Lock()
	pools := slices.Collect(maps.Values(s.pools.all))
	for _, p := range pools {
		p.destroyLocked(nil)
	}
	s.freeAndUnlock()
	for _, p := range pools {
		<-p.closed
	}
	s.drains.Wait()
	s.Unkeep(BooksName)
	failpoint.At("end/told")
	s.eventLog.Close()
	s.memory.Close()
}
