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
)

// Config configures a [Service]. Its zero value is useful.
type Config struct {
	// Log takes what nobody can be told as an error; nil for none of it.
	Log *slog.Logger
	// MayCreate says who may make pools, and destroy those that they may use; nil for only the user that the service runs as,
	// who may destroy all of them.
	MayCreate func(mempool.Peer) bool
	// Patience is after which time it is told as an event that a session waits for a lease or for room, or that a subscriber is as far
	// behind as it can be; 0 for 10 seconds.
	Patience time.Duration
	// Limits bound what clients can make the service remember.
	Limits Limits
}

var errShutdown = situation.Of(mempool.ErrClosed, "the service is shutting down")

// Service holds the pools, buffers and sessions of one epoch. Its methods may be called from several goroutines.
type Service struct {
	epoch     mempool.Epoch
	began     time.Time
	log       *slog.Logger
	uid       uint32 // of the service's own user
	mayCreate func(mempool.Peer) bool
	limits    Limits
	memory    *hostmem.Memory // of the machine

	mu                                                      mutex
	pools                                                   map[string]*Pool // those not being destroyed
	poolByID                                                map[uint64]*Pool // and those that are
	sessions                                                map[uint64]*Session
	buffers                                                 map[uint64]*buffer
	names                                                   map[string]*name
	awaited                                                 map[string]*awaited // names that somebody waits for
	pooled                                                  signal              // pools appeared
	leases                                                  int
	namesOf, poolsOf                                        tally
	keepers                                                 map[keeperKey]*keeper
	lastPool, lastBlock, lastBuffer, lastLease, lastSession uint64
	reclaim                                                 reclaimQueue
	timelines                                               map[uint64]*timeline
	lastTimeline                                            uint64
	draining                                                map[*block]func()
	channels                                                map[string]*channel // those that are not closed
	channelByID                                             map[uint64]*channel // and those that are, until nobody needs them
	channeled                                               signal              // channels appeared
	lastChannel                                             uint64
	members                                                 int                                                        // of all channels
	most                                                    struct{ buffers, names, sessions, timelines, awaited int } // that these maps had

	looking  sync.Mutex // taken before mu
	history  history
	driver   driverCounts
	waiting  map[string]int // requests, by what they wait for
	patience time.Duration
	refused  map[string]*gap // requests, by the limit that they met
	watching bool            // channels are looked at for slow subscribers

	closed     bool
	closing    chan struct{}  // closed when Close begins
	done       chan struct{}  // closed when it has ended
	background sync.WaitGroup // pools that are being made, ended sessions whose process is not gone
	drains     sync.WaitGroup // what looks after draining
}

// New starts an epoch.
func New(c Config) *Service {
	s := &Service{
		began: time.Now(), log: c.Log, uid: mempool.Self().UID, mayCreate: c.MayCreate, limits: c.Limits.filled(), memory: hostmem.New(),
		namesOf: make(tally), poolsOf: make(tally), pools: make(map[string]*Pool), poolByID: make(map[uint64]*Pool), sessions: make(map[uint64]*Session),
		buffers: make(map[uint64]*buffer), names: make(map[string]*name), closing: make(chan struct{}), done: make(chan struct{}),
		awaited: make(map[string]*awaited), timelines: make(map[uint64]*timeline), channels: make(map[string]*channel), channelByID: make(map[uint64]*channel),
		keepers: make(map[keeperKey]*keeper), history: history{counts: newEventCounts(), watchers: make(map[*watcher]struct{})}, waiting: make(map[string]int),
		patience: cmp.Or(c.Patience, usualPatience), refused: make(map[string]*gap),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.mayCreate == nil {
		s.mayCreate = func(p mempool.Peer) bool { return p.UID == s.uid }
	}
	_, _ = rand.Read(s.epoch[:]) // never fails
	return s
}

// Epoch identifies this life of the service.
func (s *Service) Epoch() mempool.Epoch { return s.epoch }

// OpenSession makes a session for a peer. notify is told what the service has to say to it; it is called with locks held,
// so it must neither block nor call back; nil for a session that is told nothing, which must map nothing.
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
	s.sessions[session.id] = session
	return session, nil
}

// Close ends every session and gives all memory back, mapped elsewhere or not: nothing is allocated any more that could
// be mistaken for it, and processes that have it mapped read on. It returns when that is done.
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
	sessions := slices.Collect(maps.Values(s.sessions))
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
}
