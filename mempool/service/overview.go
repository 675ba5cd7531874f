package service

import (
	"cmp"
	"container/heap"
	"runtime"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// Overview describes the whole state of the service, without the contents of memory.
type Overview struct {
	mempool.ServiceStats
	// Maps are the maps of the pools, in the order of Stats.Pools.
	Maps []PoolMap
	// Holders has the sessions, ordered by id. At the end of Holders are the ended sessions whose processes still keep blocks. No other
	// process can use the blocks that such a process keeps.
	Holders []Holder
	// Flows are the channels, ordered by id.
	Flows []Flow
}

// PoolMap says what the bytes of a pool are used for. It lists the largest blocks one by one, and the other blocks in groups, by use
// and session. The bytes of all these blocks add up to the bytes that the pool has reserved.
type PoolMap struct {
	// Blocks are ordered by size, the largest first, then by id. A block keeps its position in Blocks when its use changes.
	Blocks []BlockInfo
	// Rest has the groups of the other blocks, ordered by bytes, the largest group first.
	Rest []BlockGroup
}

// BlockInfo describes a block and the buffer that uses it.
type BlockInfo struct {
	ID, Bytes uint64
	Use       BlockUse
	// Session is the id of the session that allocated the block's buffer; that session may have ended. If Use is BlockHeld, Session is the
	// id of an ended session whose process may still touch the block. For other blocks without a buffer, Session is 0.
	Session uint64
	// Mapped is how many sessions map the block.
	Mapped int
	// Buffer is the id of the buffer that uses the block. If no buffer uses the block, Buffer is 0, and BufferBytes and all fields below
	// are not set. BufferBytes is the size that the client asked for.
	Buffer, BufferBytes uint64
	// Tensor describes the content. The caller must not change it.
	Tensor *mempool.Tensor
	Age    time.Duration
	// Writer is the id of the session with the write lease; 0: none. Reads and Readers are as in [mempool.BufferInfo].
	Writer  uint64
	Readers []uint64
	Reads   int
	// Name, Version and Published are as in [mempool.BufferInfo].
	Name      string
	Version   uint64
	Published bool
	// Failed says that the content will never be complete: the buffer's writer died, or said that the content failed.
	Failed bool
}

// BlockGroup counts the blocks of a pool that have the same use and the same session.
type BlockGroup struct {
	Use     BlockUse
	Session uint64 // as in [BlockInfo]
	Bytes   uint64
	Blocks  int
}

// Holder is a session, with the pools in which its allocations find no room.
type Holder struct {
	mempool.SessionInfo
	// Ended says that the session has ended, but that its process still keeps blocks. Bytes then counts these blocks.
	Ended bool
	// Wants are the ids of the pools in which the session's allocations find no room.
	Wants []uint64
}

// Flow is a channel with its members.
type Flow struct {
	mempool.ChannelInfo
	Members []FlowMember
	// BlockedSince is the time since which producers wait for room, because consumers are behind. It is zero if producers do not wait.
	BlockedSince time.Time
}

// FlowMember is a producer or a consumer that takes part in a channel. Seat is the member's number among the members of its role; after
// the member is gone, a new member may get the same number. Behind is how many frames a consumer of a broadcast has not taken yet, and
// Missed how many it has missed.
type FlowMember struct {
	Session uint64
	Program string
	Role    MemberRole
	Seat    int
	Behind  uint64
	Missed  uint64
}

// view is an [Overview] that is not complete yet. The view counts the blocks of buffers while the service serves requests. Then the method
// recount corrects the counts, and holds Service.mu during this whole work: it subtracts the blocks of buffers that have ended since they
// were counted, and adds the blocks of new buffers and the blocks without a buffer. So each block counts once, but the use of a block may
// have changed since the view counted it.
type view struct {
	*Service
	mappers map[*ledger.Pool]*mapper
	moving  map[uint64]struct{} // blocks in channels
	counted countedBuffers
	ids     []uint64   // the ids of the counted buffers, in order
	uses    []BlockUse // the uses of the counted buffers
	steps   int
}

// viewPause is the number of steps after which a view releases Service.mu for a moment.
const viewPause = 64

// giveWay releases Service.mu for a moment after every viewPause steps. The caller holds Service.mu.
func (v *view) giveWay() {
	if v.steps++; v.steps%viewPause == 0 {
		v.mu.Unlock()
		runtime.Gosched() // let waiting goroutines take the lock
		v.mu.Lock()
	}
}

// Overview describes the whole state of the service. The maps describe only the largest blocks one by one; the parameter `most` is the
// greatest number of these blocks, in all maps together. If `most` is 0, Overview makes no maps. The service serves requests during this
// call, so the result may show sessions, channels and blocks at different moments, but the bytes of each map add up to the pool's reserved
// bytes. The time of a call grows with the number of blocks: the caller should pause between two calls.
func (s *Service) Overview(most int) Overview {
	s.viewing.Lock()
	defer s.viewing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &view{Service: s, mappers: make(map[*ledger.Pool]*mapper), moving: make(map[uint64]struct{})}
	o := Overview{Holders: v.holders(), Flows: v.flows()}
	if most == 0 || len(s.ledger.Pools) == 0 {
		o.ServiceStats = View{svc: s}.statsLocked()
		return o
	}
	v.countBuffers(most / len(s.ledger.Pools))
	v.recount()
	o.ServiceStats = View{svc: s}.statsLocked()
	for _, p := range o.Pools {
		o.Maps = append(o.Maps, v.mapper(s.ledger.Pools[p.Pool.ID]).describe(v.Service, v.moving))
	}
	return o
}

// mapper returns the mapper of a pool. If the pool has no mapper yet, mapper makes one. The new mapper lists at most as many blocks one by
// one as each of the other mappers. The caller holds Service.mu.
func (v *view) mapper(p *ledger.Pool) *mapper {
	m := v.mappers[p]
	if m == nil {
		m = &mapper{pool: p, groups: make(map[groupKey]*BlockGroup)}
		for _, other := range v.mappers {
			m.most = other.most
			break
		}
		v.mappers[p] = m
	}
	return m
}

// countBuffers counts the blocks of all buffers that exist now. The parameter `most` limits how many blocks the map of each pool lists one
// by one. The caller holds Service.mu.
func (v *view) countBuffers(most int) {
	for _, p := range v.ledger.Pools {
		v.mapper(p).most = most
	}
	for ch := range v.ledger.Channels.All() {
		for _, id := range v.channels.of(ch).Blocks() {
			v.moving[id] = struct{}{}
		}
		v.giveWay()
	}
	last := v.ledger.Last.Buffer
	v.viewed = &v.counted
	for id, b := range v.ledger.Buffers.After(0) {
		if id > last {
			break
		}
		if v.counted.last = id; b.Whole() == nil {
			v.ids, v.uses = append(v.ids, id), append(v.uses, v.mapper(b.Block.Pool).lent(b, v.moving))
		}
		v.giveWay()
	}
}

// recount corrects the counts of countBuffers, and adds the blocks without a buffer. The caller holds Service.mu, and recount does not
// release the mutex.
func (v *view) recount() {
	v.viewed = nil
	gone := make(map[*ledger.Buffer]struct{}, len(v.counted.ended))
	for _, b := range v.counted.ended {
		at, _ := slices.BinarySearch(v.ids, b.ID)
		v.mapper(b.Block.Pool).uncount(b, v.uses[at])
		gone[b] = struct{}{}
	}
	for _, m := range v.mappers {
		m.all = slices.DeleteFunc(m.all, func(one drawn) bool { _, ended := gone[one.buffer]; return ended })
		heap.Init(&m.largest)
	}
	for _, b := range v.ledger.Buffers.After(v.counted.last) {
		if b.Whole() == nil {
			v.mapper(b.Block.Pool).lent(b, v.moving)
		}
	}
	for _, p := range v.ledger.Pools {
		v.mapper(p).free()
	}
}

// Flows lists all channels, ordered by id, including closed channels that still have consumers. The service serves requests during this
// call.
func (s *Service) Flows() []Flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	return (&view{Service: s}).flows()
}

// flows does the same as Flows. The caller holds Service.mu.
func (v *view) flows() []Flow {
	list := make([]Flow, 0, v.ledger.Channels.Len())
	for ch := range v.ledger.Channels.All() {
		list = append(list, v.channels.of(ch).flow())
		v.giveWay()
	}
	return list
}

// flow describes the channel. The caller holds Service.mu.
func (ch *channel) flow() Flow {
	f := Flow{ChannelInfo: ch.Describe()}
	_, f.BlockedSince = ch.Blocked()
	for _, m := range ch.Members {
		if m.Entered && !m.Left {
			f.Members = append(f.Members, FlowMember{Session: m.Session.ID, Program: m.Session.Program, Role: m.Role, Seat: m.Seat, Behind: ch.Behind(m), Missed: ch.Missed(m)})
		}
	}
	slices.SortFunc(f.Members, func(a, b FlowMember) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Session, b.Session), cmp.Compare(b.Behind, a.Behind))
	})
	return f
}

// holders describes the sessions, and ended sessions whose processes still keep blocks. The caller holds Service.mu.
func (v *view) holders() []Holder {
	wants, left := make(map[*Session][]uint64), make(map[*Session]uint64)
	for _, p := range v.pools.all {
		for b := range p.rec.AllCharged() {
			v.giveWay()
			if b.State != ledger.BlockHeld {
				continue
			}
			for one := range b.AllLeft() {
				left[v.sessionOf(one)] += b.Size
			}
		}
		for one := range p.demand.wanting {
			wants[one] = append(wants[one], p.rec.Info.ID)
		}
	}
	all := View{svc: v.Service}
	list := make([]Holder, 0, v.ledger.Sessions.Len()+len(left))
	for of := range v.ledger.Sessions.All() {
		one := v.sessionOf(of)
		slices.Sort(wants[one])
		list = append(list, Holder{SessionInfo: all.infoLocked(one), Wants: wants[one]})
		v.giveWay()
	}
	for one, bytes := range left {
		h := Holder{SessionInfo: all.infoLocked(one), Ended: true}
		h.Bytes = bytes
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b Holder) int {
		if a.Ended != b.Ended {
			return map[bool]int{false: -1, true: 1}[a.Ended]
		}
		return cmp.Compare(a.ID, b.ID)
	})
	return list
}

// drawn is a block that the map lists on its own, not in a group.
type drawn struct {
	*ledger.Block
	group  *BlockGroup    // the group of the block's use and session
	buffer *ledger.Buffer // the buffer that uses the block; nil: none
}

// largest keeps the largest of the blocks that callers pass to its method `add`, at most `most` blocks. Of blocks with the same size, it
// keeps the blocks with the smallest ids. Together with the package container/heap, it is a binary heap: all[0] is the smallest of the
// blocks that it keeps.
type largest struct {
	most int
	all  []drawn
}

func before(a, b drawn) int { return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.ID, b.ID)) }

func (l *largest) Len() int           { return len(l.all) }
func (l *largest) Less(i, j int) bool { return before(l.all[i], l.all[j]) > 0 }
func (l *largest) Swap(i, j int)      { l.all[i], l.all[j] = l.all[j], l.all[i] }
func (l *largest) Push(one any)       { l.all = append(l.all, one.(drawn)) }

func (l *largest) Pop() any {
	one := l.all[len(l.all)-1]
	l.all = l.all[:len(l.all)-1]
	return one
}

func (l *largest) add(one drawn) {
	switch {
	case len(l.all) < l.most:
		heap.Push(l, one)
	case l.most > 0 && before(one, l.all[0]) < 0:
		l.all[0] = one
		heap.Fix(l, 0)
	}
}

type groupKey struct {
	session uint64
	use     BlockUse
}

// mapper counts the blocks of a pool by use and session, and remembers the largest blocks.
type mapper struct {
	largest
	pool   *ledger.Pool
	groups map[groupKey]*BlockGroup

	key  groupKey // key of the last call of group: often, many blocks in a row belong to one group
	last *BlockGroup
}

func (m *mapper) group(use BlockUse, session uint64) *BlockGroup {
	key := groupKey{session, use}
	if m.last != nil && m.key == key {
		return m.last
	}
	g := m.groups[key]
	if g == nil {
		g = &BlockGroup{Use: use, Session: session}
		m.groups[key] = g
	}
	m.key, m.last = key, g
	return g
}

func (m *mapper) count(b *ledger.Block, of *ledger.Buffer, use BlockUse, session uint64) {
	g := m.group(use, session)
	g.Blocks++
	g.Bytes += b.Size
	m.add(drawn{b, g, of})
}

// lent counts the block of a buffer, and returns the use for which it counts. The argument `moving` has the ids of blocks in channels. The caller holds Service.mu.
func (m *mapper) lent(b *ledger.Buffer, moving map[uint64]struct{}) BlockUse {
	use := useOf(b, moving)
	m.count(b.Block, b, use, b.Account.Session())
	return use
}

// uncount undoes lent. The caller holds Service.mu.
func (m *mapper) uncount(b *ledger.Buffer, counted BlockUse) {
	g := m.group(counted, b.Account.Session())
	g.Blocks--
	g.Bytes -= b.Block.Size
}

// free counts the blocks that no buffer uses. The caller holds Service.mu.
func (m *mapper) free() {
	p := m.pool
	for b := range p.Free() {
		m.count(b, nil, BlockFree, 0)
	}
	for b := range p.AllCharged() {
		if b.State == ledger.BlockHeld {
			m.count(b, nil, BlockHeld, b.LastLeft())
		}
	}
	rest := p.Reserved // after the loop: the bytes of blocks that are being allocated or freed
	blocks := p.Blocks
	for _, g := range m.groups {
		rest -= g.Bytes
		blocks -= g.Blocks
	}
	if rest > 0 {
		*m.group(BlockReturning, 0) = BlockGroup{Use: BlockReturning, Bytes: rest, Blocks: blocks}
	}
}

// describe returns the map of the mapper's pool. moving has the ids of blocks in channels. The caller holds Service.mu.
func (m *mapper) describe(s *Service, moving map[uint64]struct{}) (made PoolMap) {
	slices.SortFunc(m.all, before)
	made.Blocks = make([]BlockInfo, len(m.all))
	for i, one := range m.all {
		one.group.Bytes -= one.Size
		one.group.Blocks--
		made.Blocks[i] = one.describe(s, moving)
	}
	for _, g := range m.groups {
		if g.Blocks > 0 {
			made.Rest = append(made.Rest, *g)
		}
	}
	slices.SortFunc(made.Rest, func(a, b BlockGroup) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Use, b.Use), cmp.Compare(a.Session, b.Session))
	})
	return made
}

func (one drawn) describe(s *Service, moving map[uint64]struct{}) BlockInfo {
	info := BlockInfo{ID: one.ID, Bytes: one.Size, Use: one.group.Use, Session: one.group.Session, Mapped: one.Mapped.Len()}
	b := one.buffer
	if b == nil {
		return info
	}
	s.checkContent(b)
	info.Use = useOf(b, moving)
	info.Buffer, info.BufferBytes, info.Tensor, info.Failed = b.ID, b.Bytes, b.Tensor, b.Failed
	info.Age = time.Since(s.began).Truncate(time.Second) - time.Duration(b.Made)*time.Second
	if b.Writer != nil {
		info.Writer = b.Writer.Session.ID
	}
	info.Name, info.Version, info.Published = b.Published()
	info.Readers, info.Reads = b.ReadersOf(), b.Readers.Len()
	return info
}
