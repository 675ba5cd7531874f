package ledger

import (
	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

// Ledger has the records of a service. Records refer to each other by pointers, and each of them is in the table of its kind. The ledger has no
// lock: goroutines that share it hold one lock for all its methods.
type Ledger struct {
	buffers
	names
	timelines
	channels
	changes

	Limits Limits

	Sessions Index[uint64, *Session] // sessions that have not ended
	Ended    Index[uint64, *Session] // ended sessions for whose process something is still held
	Pools    map[uint64]*Pool        // all pools, including those that are being destroyed
	// PoolNames has, by its name, each pool that is not being destroyed, and those that are still being made: their Info.ID is 0, and they are not
	// in Pools.
	PoolNames map[string]*Pool
	Blocks    Index[uint64, *Block] // blocks that are not freed
	Exports   map[uint64][]byte     // by id of a block: what a successor of this process needs besides the descriptor
	Leases    Index[uint64, *Lease]
	// Last has the greatest id of each kind so far.
	Last LastIDs

	poolsOf, sessionsOf Tally
	keepers             keepers
}

// LastIDs has the greatest id of each kind.
type LastIDs struct {
	Session, Pool, Block, Buffer, Lease, Timeline, Channel uint64
	Event                                                  uint64 // of the event log
}

// New makes a ledger without records.
func New(l Limits) *Ledger {
	return &Ledger{Limits: l.Filled(), Pools: make(map[uint64]*Pool), PoolNames: make(map[string]*Pool), poolsOf: make(Tally), sessionsOf: make(Tally),
		keepers: make(keepers), Exports: make(map[uint64][]byte),
		buffers: buffers{reasons: make(map[uint64]string), events: make(map[uint64][]byte), published: make(map[uint64]published), divisions: make(map[uint64]*division)}, names: names{namesOf: make(Tally), whileUsed: make(map[uint64][]*Name)},
		timelines: timelines{Timelines: make(map[uint64]*Timeline)}, channels: channels{ChannelNames: make(map[string]*Channel)}}
}

// Session is what is known of one connection.
type Session struct {
	ledger  *Ledger
	ID      uint64
	Peer    mempool.Peer
	Owner   bool   // the session's user is the user that the service runs as, or root: it sees everything
	Program string // the program name that the client gave
	Began   time.Time
	Ended   bool

	Leases   map[uint64]*Lease
	Names    map[string]*Name // names that are removed when the session ends
	Mapped   map[uint64]*Block
	Accounts map[*Pool]*Account
	Members  map[*Member]struct{}                // the session's members of channels that have a seat
	Timeline *Timeline                           // nil until the session asks for it
	most     struct{ leases, names, mapped int } // the greatest lengths of these maps
	Keeper   *Keeper
	// Token proves that a client which connects again has the session.
	Token mempool.Epoch
	// Done is the number of the session's last packet that changed something. Answers has, by the numbers of requests, what a successor needs to
	// build the answers again that the client may not have received.
	Done      uint64
	Answers   map[uint32]*Answer
	forgotten bool            // see ForgetSession
	holders   int             // how many timelines, and members of channels, refer to the session
	tensor    *mempool.Tensor // the last tensor that the session described
}

// OpenSession adds a session of a peer. The argument `owner` says whether the peer's user sees everything.
func (l *Ledger) OpenSession(p mempool.Peer, owner bool, began time.Time) *Session {
	l.Last.Session++
	s := &Session{ledger: l, ID: l.Last.Session, Peer: p, Owner: owner, Began: began, Leases: make(map[uint64]*Lease), Names: make(map[string]*Name),
		Mapped: make(map[uint64]*Block), Accounts: make(map[*Pool]*Account), Keeper: l.keepers.of(p)}
	l.Sessions.Set(s.ID, s)
	l.sessionsOf.add(p.UID, 1)
	l.Touch(s)
	return s
}

// EndSession moves a session to the ended ones. Its answers are dropped, and timelines are not shown to it any more.
func (l *Ledger) EndSession(s *Session) {
	s.Ended = true
	l.Touch(doneBy{s})
	for _, a := range s.Answers {
		l.Touch(a)
	}
	s.Answers = nil
	l.Sessions.Remove(s.ID)
	l.sessionsOf.add(s.Peer.UID, -1)
	l.Ended.Set(s.ID, s)
	l.Touch(s)
	for _, t := range l.Timelines {
		if _, shown := t.Shown[s]; shown {
			delete(t.Shown, s)
			l.Touch(showing{t, s})
		}
	}
}

// ForgetSession removes an ended session for whose process nothing is held any more. Its timeline is dead, and its members have left. Members
// and timelines that are still there refer to it.
func (l *Ledger) ForgetSession(s *Session) {
	l.Ended.Remove(s.ID)
	s.forgotten = true
	l.Touch(s)
	l.keepers.drop(s.Keeper)
}

// Answer has what a successor needs to build the answer to a request again.
type Answer struct {
	session *Session
	request uint32
	From    uint64 // the id of what the request has made, or another number; the kind of the request says which
}

// Did notes that the packet of this number, with the request q or with none, changed something, and from what the request's answer is made
// again. A packet 0 is not noted: its request has waited, and later packets have been carried out.
func (s *Session) Did(packet uint64, q uint32, answer uint64) {
	if packet > s.Done {
		s.Done = packet
		s.ledger.Touch(doneBy{s})
	}
	if q != 0 {
		if s.Answers == nil {
			s.Answers = make(map[uint32]*Answer)
		}
		a := &Answer{session: s, request: q, From: answer}
		s.Answers[q] = a
		s.ledger.Touch(a)
	}
}

// Answered notes that the client has the answers to requests.
func (s *Session) Answered(requests []uint32) {
	for _, q := range requests {
		if a := s.Answers[q]; a != nil {
			delete(s.Answers, q)
			s.ledger.Touch(a)
		}
	}
}

// dropHolder notes that a timeline or a member that referred to the session is gone.
func (s *Session) dropHolder() {
	if s.holders--; s.forgotten {
		s.ledger.Touch(s)
	}
}

// SessionsOf returns how many sessions a user has.
func (l *Ledger) SessionsOf(uid uint32) int { return l.sessionsOf[uid] }

// Describe returns a copy of a tensor. Successive buffers with equal tensors share one copy.
func (s *Session) Describe(t mempool.Tensor) *mempool.Tensor {
	if s.tensor == nil || !s.tensor.Equal(t) {
		kept := t.Clone()
		s.tensor = &kept
	}
	return s.tensor
}

// Bytes returns how many bytes the buffers of the session take in all pools.
func (s *Session) Bytes() (sum uint64) {
	for _, a := range s.Accounts {
		sum += a.bytes
	}
	return sum
}
