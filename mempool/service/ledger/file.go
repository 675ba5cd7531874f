package ledger

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// This file writes a ledger as bytes, and reads it back. The bytes are a msgpack array: the version, then the tables. Records name each other
// by id. Sums and indexes are not written: Decode computes them anew.

// Version is the version of the encoding.
const Version = 1

// VersionError says that an encoded ledger has a version that this program does not know. It wraps [mempool.ErrInvalid].
type VersionError struct{ Found, Expected int }

func (e *VersionError) Error() string {
	return fmt.Sprintf("%v: the ledger was written in version %d, and this program reads version %d: start the program that wrote it, or begin with an empty ledger",
		mempool.ErrInvalid, e.Found, e.Expected)
}

// Unwrap returns [mempool.ErrInvalid].
func (*VersionError) Unwrap() error { return mempool.ErrInvalid }

// content has the tables of a ledger, in the order of their ids.
type content struct {
	Limits    Limits
	Last      LastIDs
	Keepers   []keeperEntry
	Sessions  []sessionEntry
	Timelines []timelineEntry
	Pools     []poolEntry
	Blocks    []blockEntry
	Buffers   []bufferEntry
	Leases    []leaseEntry
	Names     []nameEntry
	Channels  []channelEntry
}

type keeperEntry struct {
	ID, Process uint64
	UID         uint32
}

type timelineEntry struct {
	ID, Session           uint64
	Sealed, Dead, Unknown bool
	Promised              []uint64
	Shown                 []uint64 // sessions
}

type sessionEntry struct {
	ID        uint64
	Peer      mempool.Peer
	Owner     bool
	Program   string
	Began     time.Time
	Ended     bool
	Forgotten bool // only members and timelines refer to the session
	Keeper    uint64
	Mapped    []uint64 // blocks
	Pools     []uint64 // pools in which the session has an account
}

type poolEntry struct {
	Info        mempool.PoolInfo
	Granularity uint64
	Maker       uint32
	Access      mempool.Access
	Closing     bool
	Closed      bool
	Removed     bool // only channels refer to the pool
	LastPending uint64
	Idle        []uint64 // free blocks without work under way, by size, the oldest first
	Stuck       []uint64
}

type blockEntry struct {
	ID, Pool, Size, Generation uint64
	Holds                      int32
	State                      BlockState
	Fences                     Fences
	Left                       []uint64 // sessions
	Keepers                    []uint64
	Since                      uint64
}

type bufferEntry struct {
	ID, Block, Bytes uint64
	Generation       uint64
	Tensor           mempool.Tensor
	Session          uint64 // of the account
	UID              uint32 // of the account
	Frames           int32
	Ready            Fences
	Failed, Doubted  bool
	Made             uint32
	Reason           string
	Event            []byte
	Version          uint64
	Whole, Base      uint64 // of a range; 0: it is none
}

type leaseEntry struct {
	ID, Session, Buffer uint64
	Write               bool
	Began               uint32
	Wait                Fences
}

type nameEntry struct {
	Text   string
	Buffer uint64
	UID    uint32
	Owner  uint64 // 0: none

	Version   uint64
	WhileUsed bool
}

type channelEntry struct {
	Info       mempool.ChannelIdentity
	UID        uint32
	Closed     bool
	LastMember uint64
	Alone      time.Time
	Members    []memberEntry
	Kept       []keptEntry
}

type memberEntry struct {
	ID, Session                   uint64
	Slot                          int
	Gone                          bool // it has no slot any more, and the channel keeps buffers of it
	Role                          MemberRole
	Full                          mempool.FullPolicy
	Timeline                      uint64 // 0: none
	Reserved, Entered, Left, Said bool
}

type keptEntry struct {
	Buffer    uint64
	Producers []uint64 // members
}

// Encode writes the ledger as bytes. Blocks that are being allocated, and pools that are being made, are left out: they do not exist yet.
func (l *Ledger) Encode() ([]byte, error) {
	c := content{Limits: l.Limits, Last: l.Last}
	keepers := make(map[*Keeper]struct{})
	forgotten, removed := l.outlived()
	for _, table := range []iter.Seq[*Session]{l.Sessions.All(), l.Ended.All(), maps.Values(forgotten)} {
		for s := range table {
			keepers[s.Keeper] = struct{}{}
			e := sessionEntry{ID: s.ID, Peer: s.Peer, Owner: s.Owner, Program: s.Program, Began: s.Began, Ended: s.Ended, Forgotten: !l.known(s),
				Keeper: s.Keeper.id, Mapped: slices.Sorted(maps.Keys(s.Mapped))}
			for p := range s.Accounts {
				e.Pools = append(e.Pools, p.Info.ID)
			}
			slices.Sort(e.Pools)
			c.Sessions = append(c.Sessions, e)
		}
	}
	slices.SortFunc(c.Sessions, func(a, b sessionEntry) int { return cmp.Compare(a.ID, b.ID) })
	for _, id := range slices.Sorted(maps.Keys(l.Timelines)) {
		t := l.Timelines[id]
		e := timelineEntry{ID: id, Session: t.Session.ID, Sealed: t.Sealed, Dead: t.Dead, Unknown: t.Unknown, Promised: t.Promised}
		for s := range t.Shown {
			e.Shown = append(e.Shown, s.ID)
		}
		slices.Sort(e.Shown)
		c.Timelines = append(c.Timelines, e)
	}
	for _, id := range slices.Sorted(maps.Keys(l.Pools)) {
		c.Pools = append(c.Pools, l.Pools[id].entry())
	}
	for _, id := range slices.Sorted(maps.Keys(removed)) {
		c.Pools = append(c.Pools, poolEntry{Info: removed[id].Info, Maker: removed[id].Maker, Access: *removed[id].Access, Closing: true, Closed: true, Removed: true})
	}
	for id, b := range l.Blocks.After(0) {
		e := blockEntry{ID: id, Pool: b.Pool.Info.ID, Size: b.Size, Generation: b.Generation, Holds: b.Holds, State: b.State, Fences: b.Fences}
		if b.kept != nil {
			for s := range b.kept.left.All() {
				e.Left = append(e.Left, s.ID)
			}
			slices.Sort(e.Left)
			for _, k := range b.kept.keepers {
				keepers[k] = struct{}{}
				e.Keepers = append(e.Keepers, k.id)
			}
			e.Since = b.kept.since
		}
		c.Blocks = append(c.Blocks, e)
	}
	for k := range keepers {
		c.Keepers = append(c.Keepers, keeperEntry{k.id, k.process, k.uid})
	}
	slices.SortFunc(c.Keepers, func(a, b keeperEntry) int { return cmp.Compare(a.ID, b.ID) })
	for id, b := range l.Buffers.After(0) {
		e := bufferEntry{ID: id, Block: b.Block.ID, Bytes: b.Bytes, Generation: b.Generation, Tensor: *b.Tensor,
			Session: b.Account.session, UID: b.Account.uid, Frames: b.Frames, Ready: b.Ready, Failed: b.Failed, Doubted: b.Doubted, Made: b.Made,
			Reason: l.reasons[id], Event: l.events[id], Version: l.versions[id], Base: b.Base()}
		if whole := b.Whole(); whole != nil {
			e.Whole = whole.ID
		}
		c.Buffers = append(c.Buffers, e)
	}
	for id, of := range l.Leases.After(0) {
		c.Leases = append(c.Leases, leaseEntry{id, of.Session.ID, of.Buffer.ID, of.Write, of.Began, of.Wait})
	}
	for text, n := range l.Names.After("") {
		e := nameEntry{Text: text, Buffer: n.Buffer.ID, UID: n.UID, Version: n.Version, WhileUsed: n.WhileUsed}
		if n.Owner != nil {
			e.Owner = n.Owner.ID
		}
		c.Names = append(c.Names, e)
	}
	for ch := range l.Channels.All() {
		c.Channels = append(c.Channels, ch.entry())
	}
	head, err := msgpack.Marshal(Version)
	if err != nil {
		return nil, fmt.Errorf("%w: write the ledger: %w", mempool.ErrInternal, err)
	}
	body, err := msgpack.Marshal(&c)
	if err != nil {
		return nil, fmt.Errorf("%w: write the ledger: %w", mempool.ErrInternal, err)
	}
	return append(head, body...), nil
}

// outlived returns, by id, the forgotten sessions that members and timelines refer to, and the removed pools that channels refer to.
func (l *Ledger) outlived() (forgotten map[uint64]*Session, removed map[uint64]*Pool) {
	forgotten, removed = make(map[uint64]*Session), make(map[uint64]*Pool)
	add := func(s *Session) {
		if !l.known(s) {
			forgotten[s.ID] = s
		}
	}
	for _, t := range l.Timelines {
		add(t.Session)
	}
	for ch := range l.Channels.All() {
		if l.Pools[ch.Pool.Info.ID] != ch.Pool {
			removed[ch.Pool.Info.ID] = ch.Pool
		}
		for _, m := range ch.all() {
			add(m.Session)
		}
	}
	return forgotten, removed
}

// all returns the members of the channel, by id: those that have a slot, and those whose buffers the channel keeps.
func (ch *Channel) all() map[uint64]*Member {
	all := maps.Clone(ch.Members)
	for _, producers := range ch.Kept {
		for _, m := range producers {
			all[m.ID] = m
		}
	}
	return all
}

func (ch *Channel) entry() channelEntry {
	e := channelEntry{Info: ch.Info, UID: ch.UID, Closed: ch.Closed, LastMember: ch.LastMember, Alone: ch.Alone}
	for id, m := range ch.all() {
		one := memberEntry{ID: id, Session: m.Session.ID, Slot: m.Slot, Gone: ch.Members[id] == nil, Role: m.Role, Full: m.Full, Reserved: m.Reserved, Entered: m.Entered,
			Left: m.Left, Said: m.Said}
		if m.Timeline != nil && !one.Gone {
			one.Timeline = m.Timeline.ID
		}
		e.Members = append(e.Members, one)
	}
	slices.SortFunc(e.Members, func(a, b memberEntry) int { return cmp.Compare(a.ID, b.ID) })
	for b, producers := range ch.Kept {
		one := keptEntry{Buffer: b.ID}
		for _, m := range producers {
			one.Producers = append(one.Producers, m.ID)
		}
		e.Kept = append(e.Kept, one)
	}
	slices.SortFunc(e.Kept, func(a, b keptEntry) int { return cmp.Compare(a.Buffer, b.Buffer) })
	return e
}

func (p *Pool) entry() poolEntry {
	e := poolEntry{Info: p.Info, Granularity: p.Granularity, Maker: p.Maker, Access: *p.Access, Closing: p.Closing, Closed: p.Closed, LastPending: p.lastPending}
	for _, size := range slices.Sorted(maps.Keys(p.cache)) {
		for _, b := range p.cache[size] {
			e.Idle = append(e.Idle, b.ID)
		}
	}
	for _, b := range p.stuck {
		e.Stuck = append(e.Stuck, b.ID)
	}
	return e
}

// Decode reads a ledger that Encode wrote.
//
// Errors: [*VersionError], [mempool.ErrInvalid] for bytes that are no ledger, or whose ledger contradicts itself.
func Decode(data []byte) (*Ledger, error) {
	d := msgpack.NewDecoder(bytes.NewReader(data))
	version, err := d.DecodeInt()
	if err != nil {
		return nil, typed.Errorf(mempool.ErrInvalid, "these %d bytes are no ledger: %v", len(data), err)
	}
	if version != Version {
		return nil, &VersionError{version, Version}
	}
	var c content
	if err := d.Decode(&c); err != nil {
		return nil, typed.Errorf(mempool.ErrInvalid, "the ledger cannot be read: %v", err)
	}
	r := &reader{Ledger: New(c.Limits), keepers: make(map[uint64]*Keeper), accounts: make(map[[2]uint64]*Account),
		forgotten: make(map[uint64]*Session), removed: make(map[uint64]*Pool)}
	r.Last = c.Last
	r.readSessions(&c)
	r.readBlocks(&c)
	r.readBuffers(&c)
	r.readChannels(&c)
	wrong := r.missing
	if wrong == nil {
		wrong = r.Check()
	}
	if wrong != nil {
		return nil, typed.Errorf(mempool.ErrInvalid, "the ledger contradicts itself: %s", strings.Join(wrong, "; "))
	}
	return r.Ledger, nil
}

// reader makes a ledger of its content.
type reader struct {
	*Ledger
	keepers   map[uint64]*Keeper
	accounts  map[[2]uint64]*Account // of sessions that are forgotten, by pool and session
	forgotten map[uint64]*Session
	removed   map[uint64]*Pool
	missing   []string // records that others name and that are not there
}

// named returns a record that another record names.
func named[V any](r *reader, what string, id uint64, get func(uint64) *V) (v *V, ok bool) {
	if v = get(id); v == nil {
		r.missing = append(r.missing, fmt.Sprintf("there is no %s %d", what, id))
	}
	return v, v != nil
}

func (r *reader) session(id uint64) *Session {
	return cmp.Or(r.Sessions.Get(id), r.Ended.Get(id), r.forgotten[id])
}

func (r *reader) pool(id uint64) *Pool { return cmp.Or(r.Pools[id], r.removed[id]) }

func (r *reader) readSessions(c *content) {
	for _, e := range c.Keepers {
		r.keepers[e.ID] = &Keeper{id: e.ID, process: e.Process, uid: e.UID, kept: make(map[*Pool]uint64)}
	}
	for _, e := range c.Sessions {
		k, ok := named(r, "process", e.Keeper, func(id uint64) *Keeper { return r.keepers[id] })
		if !ok {
			continue
		}
		s := &Session{ID: e.ID, Peer: e.Peer, Owner: e.Owner, Program: e.Program, Began: e.Began, Ended: e.Ended, Leases: make(map[uint64]*Lease),
			Names: make(map[string]*Name), Mapped: make(map[uint64]*Block), Accounts: make(map[*Pool]*Account), Keeper: k}
		if e.Forgotten {
			r.forgotten[s.ID] = s
			continue
		}
		if k.sessions++; k.process != 0 {
			r.Ledger.keepers[keeperKey{k.process, k.uid}] = k
		}
		if s.Ended {
			r.Ended.Set(s.ID, s)
		} else {
			r.Sessions.Set(s.ID, s)
			r.sessionsOf.add(s.Peer.UID, 1)
		}
	}
	for _, e := range c.Timelines {
		s, ok := named(r, "session", e.Session, r.session)
		if !ok {
			continue
		}
		t := &Timeline{ID: e.ID, Session: s, Sealed: e.Sealed, Promised: e.Promised, Dead: e.Dead, Unknown: e.Unknown}
		r.putTimeline(t)
		for _, id := range e.Shown {
			if to, ok := named(r, "session", id, r.session); ok {
				t.Shown[to] = struct{}{}
			}
		}
	}
	for _, e := range c.Pools {
		p := &Pool{ledger: r.Ledger, Info: e.Info, Granularity: e.Granularity, Maker: e.Maker, Access: &e.Access, Closing: e.Closing, Closed: e.Closed,
			lastPending: e.LastPending}
		p.makeLists()
		if e.Removed {
			r.removed[p.Info.ID] = p
			continue
		}
		r.Pools[p.Info.ID] = p
		if !p.Closing {
			r.PoolNames[p.Info.Name] = p
		}
		r.poolsOf.add(p.Maker, 1)
	}
}

func (r *reader) readBlocks(c *content) {
	var waiting []*Block
	for _, e := range c.Blocks {
		p, ok := named(r, "pool", e.Pool, r.pool)
		if !ok {
			continue
		}
		b := &Block{ID: e.ID, Pool: p, Size: e.Size, Generation: e.Generation, Holds: e.Holds, State: e.State, Fences: e.Fences}
		r.Blocks.Set(b.ID, b)
		p.Reserved += b.Size
		p.Blocks++
		switch b.State {
		case BlockLeased:
			p.Leased += b.Size
		case BlockCached:
			p.Cached += b.Size
		default:
			p.Held += b.Size
		}
		for _, id := range e.Left {
			if s, ok := named(r, "session", id, r.session); ok {
				b.keeping().left.Add(s)
			}
		}
		for _, id := range e.Keepers {
			if k, ok := named(r, "process", id, func(id uint64) *Keeper { return r.keepers[id] }); ok {
				kept := b.keeping()
				kept.keepers = append(kept.keepers, k)
			}
		}
		if b.Kept() {
			p.charged[b] = struct{}{}
			b.count(int(b.Size))
		}
		if e.Since > 0 {
			b.keeping().since = e.Since
			waiting = append(waiting, b)
		}
	}
	slices.SortFunc(waiting, func(a, b *Block) int { return cmp.Compare(a.kept.since, b.kept.since) })
	for _, b := range waiting {
		b.Pool.enlist(b)
	}
	for _, e := range c.Sessions {
		s := r.session(e.ID)
		for _, id := range e.Mapped {
			if b, ok := named(r, "block", id, r.Blocks.Get); ok && s != nil {
				b.Mapped.Add(s)
				s.Mapped[id] = b
			}
		}
		for _, id := range e.Pools {
			if p, ok := named(r, "pool", id, r.pool); ok && s != nil {
				s.Account(p)
			}
		}
	}
	for _, e := range c.Pools {
		p := r.pool(e.Info.ID)
		for _, id := range e.Idle {
			if b, ok := named(r, "block", id, r.Blocks.Get); ok {
				p.cache[b.Size] = append(p.cache[b.Size], b)
				if b.Mapped.Len() == 0 {
					p.loose++
				}
			}
		}
		for _, id := range e.Stuck {
			if b, ok := named(r, "block", id, r.Blocks.Get); ok {
				p.stuck = append(p.stuck, b)
			}
		}
	}
}

// account returns the account of a session, which may be forgotten.
func (r *reader) account(p *Pool, session uint64, uid uint32) *Account {
	if s := r.session(session); s != nil {
		return s.Account(p)
	}
	key := [2]uint64{p.Info.ID, session}
	if r.accounts[key] == nil {
		r.accounts[key] = &Account{pool: p, session: session, uid: uid}
	}
	return r.accounts[key]
}

func (r *reader) readBuffers(c *content) {
	last := new(mempool.Tensor) // successive buffers with equal tensors share one copy
	for _, e := range c.Buffers {
		block, ok := named(r, "block", e.Block, r.Blocks.Get)
		if !ok {
			continue
		}
		if !last.Equal(e.Tensor) {
			last = &e.Tensor
		}
		b := &Buffer{ID: e.ID, Generation: e.Generation, Block: block, Tensor: last, Bytes: e.Bytes, Account: r.account(block.Pool, e.Session, e.UID),
			Frames: e.Frames, Ready: e.Ready, Failed: e.Failed, Doubted: e.Doubted, Made: e.Made}
		if e.Whole == 0 {
			b.Account.add(block.Size)
			r.putBuffer(b)
		} else if whole, ok := named(r, "buffer", e.Whole, r.Buffers.Get); ok {
			r.putRange(b, whole, e.Base)
		}
		if e.Reason != "" {
			r.reasons[b.ID] = e.Reason
		}
		if e.Event != nil {
			r.events[b.ID] = e.Event
		}
		if e.Version != 0 {
			r.versions[b.ID] = e.Version
		}
	}
	for _, e := range c.Leases {
		s, known := named(r, "session", e.Session, r.Sessions.Get)
		for _, f := range e.Wait {
			_, ok := named(r, "timeline", f.Timeline, func(id uint64) *Timeline { return r.Timelines[id] })
			known = known && ok
		}
		if b, ok := named(r, "buffer", e.Buffer, r.Buffers.Get); ok && known {
			r.putLease(&Lease{ID: e.ID, Session: s, Buffer: b, Write: e.Write, Began: e.Began, Wait: e.Wait})
		}
	}
	for _, e := range c.Names {
		n := &Name{Text: e.Text, UID: e.UID, Version: max(e.Version, 1), WhileUsed: e.WhileUsed}
		if e.Owner != 0 {
			n.Owner, _ = named(r, "session", e.Owner, r.Sessions.Get)
		}
		if b, ok := named(r, "buffer", e.Buffer, r.Buffers.Get); ok {
			n.Buffer = b
			r.putName(n)
		}
	}
}

func (r *reader) readChannels(c *content) {
	for _, e := range c.Channels {
		p, ok := named(r, "pool", e.Info.Pool, r.pool)
		if !ok {
			continue
		}
		ch := &Channel{Info: e.Info, Pool: p, UID: e.UID, Closed: e.Closed, LastMember: e.LastMember, Alone: e.Alone}
		r.putChannel(ch)
		all := make(map[uint64]*Member)
		for _, e := range e.Members {
			s, ok := named(r, "session", e.Session, r.session)
			if !ok {
				continue
			}
			m := &Member{ID: e.ID, Slot: e.Slot, Channel: ch, Session: s, Role: e.Role, Full: e.Full, Reserved: e.Reserved, Entered: e.Entered,
				Left: e.Left, Said: e.Said}
			if e.Timeline != 0 {
				m.Timeline, _ = named(r, "timeline", e.Timeline, func(id uint64) *Timeline { return r.Timelines[id] })
			}
			if all[m.ID] = m; !e.Gone {
				r.putMember(m)
			}
		}
		for _, e := range e.Kept {
			b, ok := named(r, "buffer", e.Buffer, r.Buffers.Get)
			for _, id := range e.Producers {
				if m, known := named(r, "member", id, func(id uint64) *Member { return all[id] }); ok && known {
					ch.Kept[b] = append(ch.Kept[b], m)
				}
			}
		}
	}
}
