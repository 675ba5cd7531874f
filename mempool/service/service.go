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
	// Log gets the events, and errors that no client gets; nil: nothing is logged.
	Log *slog.Logger
	// MayCreate says which users may make pools, and destroy those that they may use. The user that the service runs as may always destroy
	// pools; nil: only that user may make them.
	MayCreate func(mempool.Peer) bool
	// Patience is how long a session waits for a lease or for room, or a subscriber stays as far behind as it can be, before the service
	// notes that as an event; 0 for 10 seconds.
	Patience time.Duration
	// Limits bound how much state clients can cause.
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
	sessions                                                index[uint64, *Session]
	buffers                                                 index[uint64, *buffer]
	names                                                   index[string, *name]
	awaited                                                 map[string]*awaited // names that requests wait for
	pooled                                                  signal              // pools appeared
	leases                                                  index[uint64, *Lease]
	namesOf, poolsOf                                        tally
	keepers                                                 map[keeperKey]*keeper
	lastPool, lastBlock, lastBuffer, lastLease, lastSession uint64
	reclaim                                                 reclaimQueue
	timelines                                               map[uint64]*timeline
	reasons                                                 map[uint64]string // by buffer that has failed: what its producer has said about that
	lastTimeline                                            uint64
	draining                                                map[*block]func()
	channels                                                map[string]*channel     // those that are not closed
	channelByID                                             index[uint64, *channel] // and closed ones that still have consumers
	channeled                                               signal                  // channels appeared
	lastChannel                                             uint64
	view                                                    *view                            // the one that is being made; nil: none
	viewing                                                 sync.Mutex                       // held while a view is made; locked before mu
	members                                                 int                              // of all channels
	most                                                    struct{ timelines, awaited int } // that these maps had

	history  history
	driver   driverCounts
	waiting  map[string]int // how many requests wait, by what they wait for
	patience time.Duration
	refused  map[string]*gap // refused requests, by the limit that they exceeded
	watching bool            // the goroutine of watchChannels runs

	closed     bool
	closing    chan struct{}  // closed when Close begins
	done       chan struct{}  // closed when Close has ended
	background sync.WaitGroup // pools that are being made, ended sessions whose process is not gone
	drains     sync.WaitGroup // goroutines that poll
}

// New starts an epoch.
func New(c Config) *Service {
	s := &Service{
		began: time.Now(), log: c.Log, uid: mempool.Self().UID, mayCreate: c.MayCreate, limits: c.Limits.filled(), memory: hostmem.New(),
		namesOf: make(tally), poolsOf: make(tally), pools: make(map[string]*Pool), poolByID: make(map[uint64]*Pool),
		closing: make(chan struct{}), done: make(chan struct{}),
		awaited: make(map[string]*awaited), timelines: make(map[uint64]*timeline), channels: make(map[string]*channel),
		reasons: make(map[uint64]string), keepers: make(map[keeperKey]*keeper), waiting: make(map[string]int),
		history:  history{counts: newEventCounts(), watchers: make(map[*watcher]struct{})},
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

// Epoch identifies the running service. A service that is started again has another epoch.
func (s *Service) Epoch() mempool.Epoch { return s.epoch }

// OpenSession makes a session for a peer. The service calls notify with the session's notices, with locks held: notify must neither block
// nor call the service. nil: the session gets no notices, and must map nothing.
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
	return session, nil
}

// Close ends every session, frees all memory and returns. It need not wait until clients have unmapped the memory: they can still read it,
// and no later allocation can take its place.
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
}
