package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Read makes a ledger of records.
//
// Errors: [mempool.ErrInvalid] for records that contradict each other.
func Read(rs *Records, limits Limits) (*Ledger, error) {
	r := &reader{Ledger: New(limits), accounts: make(map[[2]uint64]*Account), forgotten: make(map[uint64]*Session), removed: make(map[uint64]*Pool),
		members: make(map[[2]uint64]*Member), last: new(mempool.Tensor)}
	r.Last = rs.last
	keys := make([]key, 0, len(rs.all))
	for k := range rs.all {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, key.compare)
	for _, k := range keys {
		of := k.table.fields()
		of.code(&codec{data: rs.all[k], reads: true})
		r.read(k, of)
	}
	r.charge()
	wrong := r.missing
	if wrong == nil {
		wrong = r.Check()
	}
	if wrong != nil {
		return nil, typed.Errorf(mempool.ErrInvalid, "the ledger contradicts itself: %s", strings.Join(wrong, "; "))
	}
	return r.Ledger, nil
}

// reader makes a ledger of its records.
type reader struct {
	*Ledger
	accounts  map[[2]uint64]*Account // of sessions that are forgotten, by pool and session
	forgotten map[uint64]*Session
	removed   map[uint64]*Pool
	members   map[[2]uint64]*Member // by channel and id
	last      *mempool.Tensor       // successive buffers with equal tensors share one copy
	missing   []string              // records that others name and that are not there
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

func (r *reader) pool(id uint64) *Pool         { return cmp.Or(r.Pools[id], r.removed[id]) }
func (r *reader) timeline(id uint64) *Timeline { return r.Timelines[id] }

// read makes a record.
func (r *reader) read(k key, of fields) {
	switch e := of.(type) {
	case *sessionFields:
		r.readSession(k.a, e)
	case *timelineFields:
		if s, ok := named(r, "session", e.Session, r.session); ok {
			r.putTimeline(&Timeline{ledger: r.Ledger, File: e.File, ID: k.a, Session: s, Sealed: e.Sealed, Promised: e.Promised, Dead: e.Dead, Unknown: e.Unknown})
		}
	case *numberField:
		if s, ok := named(r, "session", k.a, r.Sessions.Get); ok {
			packet, q := e.N, uint32(0)
			if k.table == inAnswers {
				packet, q = 0, uint32(k.b)
			}
			s.Did(packet, q, e.N)
		}
	case *poolFields:
		r.readPool(k.a, e)
	case *blockFields:
		r.readBlock(k.a, e)
	case *bufferFields:
		r.readBuffer(k.a, e)
	case *leaseFields:
		r.readLease(k.a, e)
	case *nameFields:
		n := &Name{Text: k.text, UID: e.UID, Version: e.Version, WhileUsed: e.WhileUsed}
		if e.Owner != 0 {
			n.Owner, _ = named(r, "session", e.Owner, r.Sessions.Get)
		}
		if b, ok := named(r, "buffer", e.Buffer, r.Buffers.Get); ok {
			n.Buffer = b
			r.putName(n)
		}
	case *channelFields:
		if p, ok := named(r, "pool", e.Spec.Pool, r.pool); ok {
			r.putChannel(&Channel{Info: mempool.ChannelIdentity{ID: k.a, ChannelSpec: e.Spec}, Pool: p, UID: e.UID, Closed: e.Closed, LastMember: e.LastMember, RosterFile: e.RosterFile, SequencerFile: e.SequencerFile, First: e.First, Alone: e.Alone})
		}
	case *memberFields:
		r.readMember(k, e)
	case *retainedFields:
		ch, _ := named(r, "channel", k.a, r.Channels.Get)
		b, ok := named(r, "buffer", k.b, r.Buffers.Get)
		for _, id := range e.Producers {
			m, known := named(r, "member", id, func(id uint64) *Member { return r.members[[2]uint64{k.a, id}] })
			if ch != nil && ok && known {
				ch.Retained[b] = append(ch.Retained[b], m)
				m.retained++
			}
		}
	default:
		r.readPair(k)
	}
}

// readPair makes a record that has no fields.
func (r *reader) readPair(k key) {
	if k.table == inMappings {
		s, known := named(r, "session", k.a, r.session)
		if b, ok := named(r, "block", k.b, r.Blocks.Get); ok && known {
			s.Map(b)
		}
		return
	}
	t, known := named(r, "timeline", k.a, r.timeline)
	if s, ok := named(r, "session", k.b, r.session); ok && known {
		t.Shown[s] = struct{}{}
	}
}

func (r *reader) readSession(id uint64, e *sessionFields) {
	s := &Session{ledger: r.Ledger, ID: id, Peer: e.Peer, Owner: e.Owner, Program: e.Program, Began: e.Began, Token: e.Token, Ended: e.Ended, forgotten: e.Forgotten, Leases: make(map[uint64]*Lease),
		Names: make(map[string]*Name), Mapped: make(map[uint64]*Block), Accounts: make(map[*Pool]*Account)}
	s.Keeper = r.keepers.of(s.Peer)
	switch {
	case s.forgotten:
		r.forgotten[id] = s
	case s.Ended:
		r.Ended.Set(id, s)
	default:
		r.Sessions.Set(id, s)
		r.sessionsOf.add(s.Peer.UID, 1)
	}
}

func (r *reader) readPool(id uint64, e *poolFields) {
	p := &Pool{ledger: r.Ledger, File: e.File, Info: e.Info, Granularity: e.Granularity, Maker: e.Maker, Access: &mempool.Access{UIDs: e.UIDs, GIDs: e.GIDs}, Closing: e.Closing,
		Closed: e.Closed}
	p.Info.ID = id
	p.makeLists()
	if e.Removed {
		r.removed[id] = p
		return
	}
	r.Pools[id] = p
	if !p.Closing {
		r.PoolNames[p.Info.Name] = p
	}
	r.poolsOf.add(p.Maker, 1)
}

func (r *reader) readBlock(id uint64, e *blockFields) {
	p, ok := named(r, "pool", e.Pool, r.pool)
	if !ok {
		return
	}
	b := &Block{ID: id, Pool: p, Size: e.Size, Generation: e.Generation, Place: e.Place, Holds: e.Holds, State: e.State, Fences: e.Fences}
	r.Blocks.Set(b.ID, b)
	if len(e.Export) > 0 {
		r.Exports[id] = e.Export
	}
	p.Reserved += b.Size
	p.Blocks++
	switch b.State {
	case BlockLeased:
		p.Leased += b.Size
	case BlockCached:
		p.Cached += b.Size
	case BlockStuck:
		p.stuck = append(p.stuck, b)
		fallthrough
	default:
		p.Held += b.Size
	}
	for _, id := range e.Left {
		if s, ok := named(r, "session", id, r.session); ok {
			b.keeping().left.Add(s)
		}
	}
	if e.Since > 0 {
		b.keeping().since = e.Since
		p.lastPending = max(p.lastPending, e.Since)
	}
}

// charge finds out which processes keep the free blocks, and lists these blocks.
func (r *reader) charge() {
	for _, s := range r.forgotten {
		r.keepers.drop(s.Keeper)
	}
	var free []*Block
	for b := range r.Blocks.All() {
		b.Fences = b.Fences.Drop(func(f mempool.Fence) bool { return r.Timelines[f.Timeline] == nil })
		if b.Charge(); b.State == BlockCached {
			free = append(free, b)
		}
	}
	slices.SortStableFunc(free, func(a, b *Block) int { return cmp.Compare(a.kept.when(), b.kept.when()) })
	for _, b := range free {
		switch {
		case !b.Kept():
			if b.kept != nil {
				b.kept.since = 0
			}
			b.shelve()
		case b.Pending():
			b.Pool.enlist(b)
		default:
			b.setPending()
		}
	}
}

// account returns the account of a session, which may be forgotten.
func (r *reader) account(p *Pool, session uint64, uid uint32) *Account {
	if s := cmp.Or(r.Sessions.Get(session), r.Ended.Get(session)); s != nil {
		return s.Account(p)
	}
	key := [2]uint64{p.Info.ID, session}
	if r.accounts[key] == nil {
		r.accounts[key] = &Account{pool: p, session: session, uid: uid}
	}
	return r.accounts[key]
}

func (r *reader) readBuffer(id uint64, e *bufferFields) {
	block, ok := named(r, "block", e.Block, r.Blocks.Get)
	if !ok {
		return
	}
	if !r.last.Equal(e.Tensor) {
		r.last = &e.Tensor
	}
	b := &Buffer{ID: id, Generation: e.Generation, Block: block, Tensor: r.last, Bytes: e.Bytes, Account: r.account(block.Pool, e.Session, e.UID),
		Frames: e.Frames, Ready: e.Ready, Failed: e.Failed, Doubted: e.Doubted, Made: e.Made}
	if e.Whole == 0 {
		b.Account.add(block.Size)
		r.putBuffer(b)
	} else if whole, ok := named(r, "buffer", e.Whole, r.Buffers.Get); ok {
		r.putRange(b, whole, e.Base)
	}
	if e.Reason != "" {
		r.reasons[id] = e.Reason
	}
	if e.Event != nil {
		r.events[id] = e.Event
	}
	if e.Published != "" {
		r.published[id] = published{e.Published, e.Version, e.Lost}
	}
}

func (r *reader) readLease(id uint64, e *leaseFields) {
	s, known := named(r, "session", e.Session, r.Sessions.Get)
	for _, f := range e.Wait {
		_, ok := named(r, "timeline", f.Timeline, r.timeline)
		known = known && ok
	}
	if b, ok := named(r, "buffer", e.Buffer, r.Buffers.Get); ok && known {
		r.putLease(&Lease{ID: id, Session: s, Buffer: b, Write: e.Write, Began: e.Began, Wait: e.Wait})
	}
}

func (r *reader) readMember(k key, e *memberFields) {
	ch, there := named(r, "channel", k.a, r.Channels.Get)
	s, known := named(r, "session", e.Session, r.session)
	if !there || !known {
		return
	}
	m := &Member{ID: k.b, Seat: e.Seat, Channel: ch, Session: s, Role: e.Role, Full: e.Full, File: e.File, Oldest: e.Oldest, Reserved: e.Reserved, Entered: e.Entered, Left: e.Left, Said: e.Said}
	if e.Timeline != 0 {
		m.Timeline, _ = named(r, "timeline", e.Timeline, r.timeline)
	}
	if r.members[[2]uint64{k.a, m.ID}] = m; e.Gone {
		s.holders++
	} else {
		r.putMember(m)
	}
}
