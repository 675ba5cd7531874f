package service

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/hostmem"
	"github.com/poolbridge/poolbridge/mempool/service/books"
	"github.com/poolbridge/poolbridge/mempool/service/eventlog"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
	"github.com/poolbridge/poolbridge/mempool/service/streams"
)

// This file has what the service keeps beside the ledger, and finds by the ids of the ledger's records: memory, files, and those who wait.

// Service holds the pools, buffers and sessions of one epoch. Several goroutines may call its methods at the same time.
type Service struct {
	epoch     mempool.Epoch
	began     time.Time
	uid       uint32 // the user that the service runs as
	mayCreate func(mempool.Peer) bool
	memory    *hostmem.Memory // the memory of the machine

	mu          mutex
	ledger      *ledger.Ledger
	books       *books.Books // nil: nothing outlives this process
	descriptors descriptors
	sessions    map[uint64]*Session // what is not plain of the sessions, blocks, pools, …: by id
	blocks      ledger.Index[uint64, *blockMemory]
	pools       pools
	timelines   streams.Timelines
	channels    channels
	broken      broken
	changed     changes
	awaited     awaitedNames
	reclaim     reclaimQueue
	draining    draining
	viewed      *countedBuffers // those that a view has counted; nil: no view counts buffers
	viewing     sync.Mutex      // held while a view is made; locked before mu
	most        int             // the greatest length of sessions

	eventLog   *eventlog.Events
	waiting    map[string]int // how many requests wait, for each kind of thing that they wait for
	patience   time.Duration
	resumeTime time.Duration
	resumeBy   time.Time // until then the sessions of a predecessor wait for their clients
	takeovers  uint64
	guard      guard

	closed     bool
	closing    chan struct{}  // closed when Close begins
	done       chan struct{}  // closed when Close has ended
	background sync.WaitGroup // pools that are being made, ended sessions whose process is not gone
	drains     sync.WaitGroup // goroutines that check something again and again
}

var errShutdown = typed.Errorf(mempool.ErrClosed, "the service is shutting down")

// Session is the service's state of one connection. When the session ends, for any reason, its leases end. Service.mu guards the
// session.
type Session struct {
	svc        *Service
	rec        *ledger.Session
	waits      waits        // requests of the session that wait
	eventWaits atomic.Int32 // calls of Events that wait
	notify     func(Notice)
	request    Request       // that the goroutine of the session carries out now; only this goroutine uses it
	absence    *absence      // nil: its client is there
	watches    bool          // it only asks for statistics, lists and events
	told       bool          // the event log has an event that the session began
	over       chan struct{} // closed when the session has ended
	// reclaimed is closed when the session has ended and the service holds nothing for the session's process any more.
	reclaimed chan struct{}

	swept chan struct{} // closed when no consumer of the ended session has a seat any more

	ending   *ending      // nil until the session ends
	blocking eventlog.Gap // long waits of other sessions for leases of this session
}

// Store keeps descriptors for a successor of this process.
type Store interface {
	// Keep keeps a descriptor under a name. It returns when a successor will have it.
	Keep(name string, f *os.File) error
	// Drop closes a descriptor of the store. It waits for a store that is stopped.
	Drop(name string)
}

// descriptors are the descriptors of the service that its Store has. They have numbers, which are also in the records of the ledger.
type descriptors struct {
	svc     *Service
	store   Store // nil: there is none
	last    atomic.Uint64
	held    atomic.Int64 // how many descriptors the store has
	dropped []uint64     // descriptors that the records do not name any more; guarded by Service.mu

	mu   sync.Mutex
	told chan struct{} // closed when the store has heard of all that it is to close; nil: there was nothing yet
}

// sessionOf returns the service's state of a session that has not ended, or of an ended session for whose process something is still held.
// The caller holds s.mu.
func (s *Service) sessionOf(of *ledger.Session) *Session { return s.sessions[of.ID] }

// Notice is a message that the service sends to a session without a request.
type Notice interface{ notice() }

// Request says which request of its client a session carries out.
type Request struct {
	Packet uint64 // its number among the packets of the session, from 1
	Query  uint32 // the number that the client gave the request; 0: the client wants no answer
}

// MemberCame gives a session the file of a new member of a channel. If the new member is a producer, the session's consumers in the channel
// need this file. If the new member is a consumer, the session's producers need it. The service closes the file when it frees the new
// member's seat. File is nil for a consumer that has left before it entered: producers may wait for its file.
type MemberCame struct {
	Channel uint64
	Role    MemberRole
	Seat    int
	Member  uint64
	File    *os.File
}

func (MemberCame) notice() {}

// MembersCame gives a session several files at once; see [MemberCame].
type MembersCame []MemberCame

func (MembersCame) notice() {}

// tellLocked sends a notice to the session, if the session gets notices and has not ended.
func (s *Session) tellLocked(n Notice) {
	if s.notify != nil && !s.rec.Ended {
		s.notify(n)
	}
}

// absence is the time of a session of a predecessor until its client comes back. Service.mu guards it.
type absence struct {
	*Session
	back chan struct{} // closed when the client comes back
}

// ending is the end of a session, until the service holds nothing for the session's process any more. Service.mu guards it.
type ending struct {
	*Session
	how     mempool.SessionEnding
	at      time.Time
	held    []*ledger.Block // the blocks that the session had leased
	lingers bool            // after the end, the service still held something for the session's process
}

// broken has the incomplete buffers that ended sessions have left in pools, and that other sessions could read. Service.mu guards broken.
type broken map[*ledger.Session][]*brokenIn

// brokenIn counts the incomplete buffers of a session in one pool.
type brokenIn struct {
	pool    *ledger.Pool
	buffers int
	bytes   uint64
	first   *ledger.Buffer
}

// Pool is memory of one kind on one device. The users and groups of the pool's access list share this memory. A pool has a name and a size
// limit. Service.mu guards the fields that can change. The file recycle.go handles blocks that no buffer uses any more.
type Pool struct {
	svc     *Service
	rec     *ledger.Pool
	making  sync.Mutex                // held while the backing is made; locked before Service.mu
	backing mempool.Backing           // nil: the pool is of a predecessor, and this process has allocated nothing; written with `making` held, too
	aged    bool                      // predecessors have allocated blocks, which this process has: see predecessor.go
	files   map[uint64]*inheritedFile // their descriptors, by number
	lost    bool                      // there were blocks whose memory is lost

	queued          uint64        // how many blocks were queued to be freed so far
	returned        countedSignal // a queued block was freed, or could not be freed
	recharged       time.Time     // when recharge last checked more than fewCharged blocks
	watched         bool          // the goroutine of watchCharged runs
	passed          bool          // an allocation has skipped pending blocks since watchCharged last checked
	closed          chan struct{} // closed when the backing is closed
	room            roomQueue     // allocations that wait for room
	relief          countedSignal // blocks became free, or were freed
	refused, failed eventlog.Gap  // refused: allocations that found no room; failed: allocations that the driver refused
	demand          demand
}

// inheritedFile is a descriptor of a predecessor, with memory of blocks.
type inheritedFile struct {
	file   *os.File
	blocks int
	bytes  uint64
}

// demand has the allocations that find no room in a pool, and the sessions that may have memory of the pool to release. Service.mu guards it.
type demand struct {
	pool     *Pool
	wanting  map[*Session]int      // how many allocations of each session have found no room
	streams  bool                  // the pool has had a channel
	dividers map[*Session]struct{} // sessions that have made ranges
	asked    time.Time             // when ask last sent Wanted
	tidied   time.Time             // when meet last called tidyLocked
	asking   bool                  // meetAgain runs
}

// pools has the pools, and the requests that wait for a pool. Service.mu guards it.
type pools struct {
	svc  *Service
	all  map[uint64]*Pool
	made signal // a pool was made, or could not be made
}

// of returns the service's state of a pool.
func (ps *pools) of(p *ledger.Pool) *Pool { return ps.all[p.Info.ID] }

// memoryOf returns the memory of a block that is not freed. The caller holds s.mu.
func (s *Service) memoryOf(b *ledger.Block) *blockMemory { return s.blocks.Get(b.ID) }

// MemberRole says whether a member of a channel is a producer or a consumer. More: go doc [ledger.MemberRole].
type MemberRole = ledger.MemberRole

// These are the roles of members.
const (
	Producer = ledger.Producer
	Consumer = ledger.Consumer
)

// MemberSpec says how a new member of a channel takes part in the channel. More: go doc [ledger.MemberSpec].
type MemberSpec = ledger.MemberSpec

// channel is a channel that the service takes care of: it frees what members that left had used. The service also decides which sessions take
// part. Service.mu guards a channel.
type channel struct {
	*streams.Stream
	svc    *Service
	joined signal    // a consumer has joined, or the channel is closed
	tended bool      // the goroutine of tendLocked runs
	rests  time.Time // the goroutine of tendLocked does not call tidyLocked before this time
}

// Joined is what a session needs to take part in a channel.
type Joined struct {
	Channel mempool.ChannelIdentity
	// Seat is the member's index in the roster. ID is a number that no other member of the channel has or gets later.
	Seat int
	ID   uint64
	// Export has three files: the roster, the sequencer, and the member's own file. The service closes these files, so the caller must not
	// close them.
	Export mempool.Export
}

// channels has the channels that are not freed, and the requests that wait for a channel. Service.mu guards it.
type channels struct {
	svc         *Service
	all         map[uint64]*channel
	made        signal                    // a channel was made
	pending     map[string][]*pendingJoin // by name of a channel that does not exist
	mostPending int                       // the greatest length of pending
	watching    bool                      // the goroutine of watchLocked runs
}

// of returns the service's state of a channel that is not freed.
func (cs *channels) of(ch *ledger.Channel) *channel { return cs.all[ch.Info.ID] }

// pendingJoin is a request that waits for a channel, to join it as a consumer. Service.mu guards it.
type pendingJoin struct {
	session *Session
	spec    MemberSpec
	waits   bool // it is in channels.pending
	done    bool // the service has made the consumer, or cannot make it
	joined  Joined
	err     error
}

// purpose says what a request waits for.
type purpose struct {
	what   string       // forRoom, …
	name   string       // name of the pool, the channel, or the buffer
	pool   *ledger.Pool // of the buffer, or the pool that has no room; nil: what the request waits for does not exist
	buffer uint64
	bytes  uint64
}

// wait is a waiting request.
type wait struct {
	purpose
	since time.Time
}

// waits are the requests of a session that wait. Service.mu guards waits.
type waits map[*wait]struct{}

// awaitedNames has the names that requests wait for. Service.mu guards it.
type awaitedNames struct {
	svc  *Service
	all  map[string]*awaitedName
	most int // the greatest length of all
}

// awaitedName is a name: requests wait until a session publishes a buffer under this name. Each name has its own signal, so that a publication
// wakes only the requests that wait for the published name.
type awaitedName struct {
	signal
	names   *awaitedNames
	text    string
	waiting int // requests that wait for the name
}

// changes has, by the id of a buffer, the signal that wakes requests which wait to lease it: a lease may have become possible, or impossible. The
// first request that waits makes the signal, and broadcast removes it. Service.mu guards changes.
type changes map[uint64]*signal

// reclaimQueue has the memory that the service is about to free. Requests add memory to the queue with Service.mu held. When a request
// has completed its change of the service's state, flush frees the queued memory without the mutex.
type reclaimQueue struct {
	svc    *Service
	blocks []*ledger.Block // in state BlockFreeing, counted as held
	pools  []*Pool         // pools that have no blocks any more, except stuck ones
	// timelines free the memory of timelines that no session can ask for any more.
	timelines []func() error
}

// draining has the blocks that are polled, each with what to do when no GPU work uses it any more. Service.mu guards draining.
type draining struct {
	svc  *Service
	next map[*ledger.Block]func()
}

// countedBuffers has the buffers that a view has counted, so that the view can correct its counts at the end: see overview.go. Service.mu guards it.
type countedBuffers struct {
	last  uint64           // the buffers up to this id are counted
	ended []*ledger.Buffer // buffers that have ended since they were counted
}

// end notes that a buffer ends; c is nil if no view counts buffers. The caller holds Service.mu.
func (c *countedBuffers) end(b *ledger.Buffer) {
	if c != nil && b.ID <= c.last && b.Whole() == nil {
		c.ended = append(c.ended, b)
	}
}
