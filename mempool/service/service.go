package service

import (
	"cmp"
	"crypto/rand"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/hostmem"
	"github.com/poolbridge/poolbridge/mempool/service/journal"
)

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
}

var errShutdown = situation.Of(mempool.ErrClosed, "the service is shutting down")

// Service holds the pools, buffers and sessions of one epoch. Several goroutines may call its methods at the same time.
type Service struct {
	epoch     mempool.Epoch
	began     time.Time
	uid       uint32 // the user that the service runs as
	mayCreate func(mempool.Peer) bool
	limits    Limits
	memory    *hostmem.Memory // the memory of the machine

	mu                                                      mutex
	pools                                                   map[string]*Pool // pools that are not being destroyed, by name
	poolByID                                                map[uint64]*Pool // all pools, including those that are being destroyed
	sessions                                                index[uint64, *Session]
	buffers                                                 index[uint64, *buffer]
	names                                                   index[string, *name]
	awaited                                                 map[string]*awaited // names that requests wait for
	pooled                                                  signal              // a pool was made, or could not be made
	leases                                                  index[uint64, *Lease]
	namesOf, poolsOf, sessionsOf                            tally
	keepers                                                 map[keeperKey]*keeper
	lastPool, lastBlock, lastBuffer, lastLease, lastSession uint64
	reclaim                                                 reclaimQueue
	timelines                                               map[uint64]*timeline
	reasons                                                 map[uint64]string // by id of a failed buffer: the reason that the producer gave
	lastTimeline                                            uint64
	draining                                                map[*block]func()
	channels                                                map[string]*channel     // channels that are not closed, by name
	channelByID                                             index[uint64, *channel] // open channels, and closed ones that are not over
	channeled                                               signal                  // a channel was made
	lastChannel                                             uint64
	view                                                    *view                            // the view that is being made; nil: none
	viewing                                                 sync.Mutex                       // held while a view is made; locked before mu
	members                                                 int                              // how many members all channels have
	most                                                    struct{ timelines, awaited int } // the greatest lengths of these maps

	journal  *journal.Journal
	waiting  map[string]int // how many requests wait, for each kind of thing that they wait for
	patience time.Duration
	watching bool // the goroutine of watchChannels runs

	closed     bool
	closing    chan struct{}  // closed when Close begins
	done       chan struct{}  // closed when Close has ended
	background sync.WaitGroup // pools that are being made, ended sessions whose process is not gone
	drains     sync.WaitGroup // goroutines that check something again and again
}

// New makes a service. Each service has its own epoch.
func New(c Config) *Service {
	events := journal.New(c.Log)
	s := &Service{
		began: time.Now(), uid: mempool.Self().UID, mayCreate: c.MayCreate, limits: c.Limits.filled(), memory: hostmem.New(),
		namesOf: make(tally), poolsOf: make(tally), sessionsOf: make(tally), pools: make(map[string]*Pool), poolByID: make(map[uint64]*Pool),
		closing: make(chan struct{}), done: make(chan struct{}),
		awaited: make(map[string]*awaited), timelines: make(map[uint64]*timeline), channels: make(map[string]*channel),
		reasons: make(map[uint64]string), keepers: make(map[keeperKey]*keeper), waiting: make(map[string]int),
		mu: mutex{journal: events}, journal: events, patience: cmp.Or(c.Patience, usualPatience),
	}
	if s.mayCreate == nil {
		s.mayCreate = func(p mempool.Peer) bool { return p.UID == s.uid }
	}
	_, _ = rand.Read(s.epoch[:]) // never fails
	return s
}

// Epoch returns the epoch of the service. After a restart, the service has another epoch.
func (s *Service) Epoch() mempool.Epoch { return s.epoch }

// OpenSession makes a session for a peer. The service calls `notify` with each notice for the session. The service holds locks while it
// calls `notify`, so `notify` must neither wait nor call the service. If `notify` is nil, the session gets no notices, and the session's
// client must not map any memory.
//
// Errors: [mempool.ErrClosed].
func (s *Service) OpenSession(p mempool.Peer, notify func(Notice)) (*Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errShutdown
	}
	s.lastSession++
	session := &Session{svc: s, id: s.lastSession, peer: p, began: time.Now(), notify: notify, over: make(chan struct{}), reclaimed: make(chan struct{}),
		leases: make(map[uint64]*Lease), names: make(map[string]*name), mapped: make(map[uint64]*block), accounts: make(map[*Pool]*account)}
	session.members = make(map[*member]struct{})
	session.keeper = s.keeper(p)
	s.sessions.set(session.id, session)
	s.sessionsOf.add(p.UID, 1)
	return session, nil
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
	for _, p := range s.poolByID {
		if a, ok := p.arena.(mempool.Lasting); ok {
			a.Last()
		}
	}
	sessions := slices.Collect(s.sessions.all())
	s.mu.Unlock()
	for _, session := range sessions {
		session.EndAs(mempool.SessionShutdown, "", nil)
	}
	s.background.Wait()
	s.mu.Lock()
	pools := slices.Collect(maps.Values(s.poolByID))
	for _, p := range pools {
		s.destroy(p, nil)
	}
	s.unlock()
	for _, p := range pools {
		<-p.closed
	}
	s.drains.Wait()
	s.journal.Close()
	s.memory.Close()
}
