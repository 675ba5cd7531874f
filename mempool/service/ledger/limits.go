package ledger

import (
	"fmt"
	"slices"
	"strings"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Limits says how many leases, names, channels and other things clients may have in the service. A field that is 0 stands for that limit's
// default value. docs/protocol.md lists these limits, and the limits that an operator cannot change. charges.go counts and limits bytes.
type Limits struct {
	// SessionLeases is how many leases a session may have at a time. SessionBlocks is how many blocks a session may map at a time.
	SessionLeases, SessionBlocks int
	// UserSessions is how many sessions a user may have at a time, including ended sessions whose process may still use their memory. The
	// limit is not for root, and not for the user that the service runs as.
	UserSessions int
	// UserNames is how many names the sessions of a user may have published at a time, including names that outlive their session. UserPools
	// is how many pools the sessions of a user may have at a time.
	UserNames, UserPools int
	// Buffers and Leases are how many buffers and leases the service may have at a time.
	Buffers, Leases int
	// Channels is how many channels there may be at a time. Members is how many members all channels may have together, including members
	// that left but still have a seat.
	Channels, Members int
	// ClosedQueueSeconds is how many seconds a closed queue keeps frames that are not acknowledged while the queue has no consumer.
	ClosedQueueSeconds int
}

// limit is one of the limits, with its name in errors and in `poolsvc serve --limit`.
type limit struct {
	name  string
	value *int
	usual int
}

func (l *Limits) all() []limit {
	return []limit{
		{"session-leases", &l.SessionLeases, 1 << 17},
		{"session-blocks", &l.SessionBlocks, 1 << 17},
		{"user-sessions", &l.UserSessions, 1024},
		{"user-names", &l.UserNames, 1 << 17},
		{"user-pools", &l.UserPools, 1024},
		{"buffers", &l.Buffers, 1 << 20},
		{"leases", &l.Leases, 1 << 21},
		{"channels", &l.Channels, 1 << 10},
		{"members", &l.Members, 1 << 12},
		{"closed-queue-seconds", &l.ClosedQueueSeconds, 600},
	}
}

// LimitNames returns the names that [Limits.Set] accepts.
func LimitNames() (names []string) {
	for _, one := range new(Limits).all() {
		names = append(names, one.name)
	}
	return names
}

// Set sets a limit by its name.
//
// Errors: [mempool.ErrInvalid].
func (l *Limits) Set(name string, n int) error {
	all := l.all()
	i := slices.IndexFunc(all, func(one limit) bool { return one.name == name })
	switch {
	case i < 0:
		return typed.Errorf(mempool.ErrInvalid, "there is no limit %q: expected one of %s", name, strings.Join(LimitNames(), ", "))
	case n < 1:
		return typed.Errorf(mempool.ErrInvalid, "the limit %s must be 1 or more, not %d", name, n)
	}
	*all[i].value = n
	return nil
}

// List returns the limits of `l` that are not 0, each as a text NAME=N.
func (l *Limits) List() (set []string) {
	for _, one := range l.all() {
		if *one.value > 0 {
			set = append(set, fmt.Sprintf("%s=%d", one.name, *one.value))
		}
	}
	return set
}

// Filled returns l with the default value for every limit that is not set.
func (l Limits) Filled() Limits {
	for _, one := range l.all() {
		if *one.value <= 0 {
			*one.value = one.usual
		}
	}
	return l
}

// LimitError says which of the [Limits] a request would have exceeded. It wraps [mempool.ErrLimit].
type LimitError struct {
	// Limit is the name of the limit. Max is the limit's value.
	Limit string
	Max   int
	// What says what the limit counts, for example "leases". Who says which session or user has these things, or that the whole service has
	// them. Have is the present number of these things.
	Who, What string
	Have      int
	// Advice says what the user can do.
	Advice string
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%v: %s has %d %s, and the limit %s is %d: %s, or start the service with --limit %s=N",
		mempool.ErrLimit, e.Who, e.Have, e.What, e.Limit, e.Max, e.Advice, e.Limit)
}

// Unwrap returns [mempool.ErrLimit].
func (*LimitError) Unwrap() error { return mempool.ErrLimit }

// MayLease says whether the session may have one more lease.
func (l *Ledger) MayLease(s *Session) error {
	if have, most := l.Leases.Len(), l.Limits.Leases; have >= most {
		return &LimitError{"leases", most, "the service", "leases", have, "wait until some are released"}
	}
	if have, most := len(s.Leases), l.Limits.SessionLeases; have >= most {
		return &LimitError{"session-leases", most, s.String(), "leases", have, "release some"}
	}
	return nil
}

// MayAllocate says whether the session may have one more buffer.
func (l *Ledger) MayAllocate(s *Session) error {
	if have, most := l.Buffers.Len(), l.Limits.Buffers; have >= most {
		return &LimitError{"buffers", most, "the service", "buffers", have, "wait until some are released and unpublished"}
	}
	return l.MayLease(s)
}

// MayMap says whether the session may be sent the export of one more block.
func (l *Limits) MayMap(s *Session) error {
	if have, most := len(s.Mapped), l.SessionBlocks; have >= most {
		return &LimitError{"session-blocks", most, s.String(), "mapped blocks", have, "drop the blocks that no lease needs"}
	}
	return nil
}

// MayMakePool says whether the session may make a pool with a name.
//
// Errors: [mempool.ErrClosed], [mempool.ErrExists], [mempool.ErrLimit].
func (l *Ledger) MayMakePool(s *Session, name string) error {
	if err := s.Alive(); err != nil {
		return err
	}
	old, err := Claim(s, "pool", name, l.PoolNames[name])
	switch {
	case err != nil:
		return err
	case old != nil:
		return typed.Errorf(mempool.ErrExists, "there is a pool %q already; open it (EnsurePool in Go and exist_ok=True in Python "+
			"open one that is alike), or choose another name", name)
	}
	if have, most := l.poolsOf[s.Peer.UID], l.Limits.UserPools; have >= most {
		return &LimitError{"user-pools", most, s.Peer.String(), "pools", have, "destroy some"}
	}
	return nil
}

// Tally counts something for each user. A user with a count of 0 has no entry.
type Tally map[uint32]int

func (t Tally) add(uid uint32, n int) {
	if t[uid] += n; t[uid] == 0 {
		delete(t, uid)
	}
}
