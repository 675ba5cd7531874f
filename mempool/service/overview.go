package service

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

// Overview describes everything that the service has at one time. It does not have the contents of memory.
type Overview struct {
	mempool.Stats
	// Maps are those of the pools, in the order of Stats.Pools.
	Maps []PoolMap
	// Holders are the sessions, by id. After them come ended sessions whose processes still keep blocks that others cannot use.
	Holders []Holder
	// Flows are the channels, by id.
	Flows []Flow
}

// PoolMap says what the bytes of a pool are used for: its largest blocks one by one, and the others in groups, by use and session. Their
// bytes add up to what the pool has reserved.
type PoolMap struct {
	// Blocks are ordered by size, the largest first, then by id. A change of its use does not move a block.
	Blocks []BlockInfo
	// Rest is ordered by bytes, the most first.
	Rest []BlockGroup
}

// BlockUse is what a block is used for.
type BlockUse uint8

// The uses of a block.
const (
	BlockWritten   BlockUse = iota // leased to be written
	BlockRead                      // leased to be read
	BlockNamed                     // published under a name, without a lease
	BlockInChannel                 // in a channel, or used by its consumers
	BlockFree                      // no buffer uses it
	BlockHeld                      // the process of a session that has ended may still touch it
	BlockReturning                 // being allocated or freed
)

func (u BlockUse) String() string {
	return [...]string{"written", "read", "named", "channel", "free", "held", "returning"}[u]
}

// BlockInfo describes a block and the buffer that uses it.
type BlockInfo struct {
	ID, Bytes uint64
	Use       BlockUse
	// Session is the session that the block counts for: it allocated the buffer, and may have ended; 0: none.
	Session uint64
	// Mapped is how many sessions map the block.
	Mapped int
	// Buffer is 0 where no buffer uses the block; the fields that follow are then not set. BufferBytes is the size that was asked for.
	Buffer, BufferBytes uint64
	// Tensor must not be changed.
	Tensor *mempool.Tensor
	Age    time.Duration
	// Writer is the session with the write lease; 0: none. Reads and Readers are as in [mempool.BufferInfo].
	Writer  uint64
	Readers []uint64
	Reads   int
	// Name is one of the buffer's names.
	Name string
	// Failed says that its writer died before the content was complete.
	Failed bool
}

// BlockGroup counts blocks of a pool with the same use and session.
type BlockGroup struct {
	Use     BlockUse
	Session uint64 // as in [BlockInfo]
	Bytes   uint64
	Blocks  int
}

// Holder is a session, with the pools in which it finds no room.
type Holder struct {
	mempool.SessionInfo
	// Ended says that the session has ended, but its process has not. Bytes are those of the blocks that the process keeps.
	Ended bool
	// Wants are the ids of pools in which its allocations find no room.
	Wants []uint64
}

// Flow is a channel with its members.
type Flow struct {
	mempool.ChannelStatus
	Members []FlowMember
}

// FlowMember is a producer or a consumer that takes part in a channel. Slot is its number among those of its role, which another has once it is
// gone. Behind is how many frames the consumer of a broadcast has not taken.
type FlowMember struct {
	Session uint64
	Role    MemberRole
	Slot    int
	Behind  uint64
}

// Overview describes everything. It describes the largest blocks, at most most, one by one; 0: it makes no maps. No request is served
// meanwhile, and the time of a map grows with the number of blocks: the caller pauses between two calls.
func (s *Service) Overview(most int) Overview {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := Overview{Stats: s.statsLocked(nil)}
	o.Holders = s.holders()
	o.Flows = s.flows()
	if most == 0 || len(s.poolByID) == 0 {
		return o
	}
	mappers := make(map[*Pool]*mapper, len(s.poolByID))
	for _, p := range s.poolByID {
		mappers[p] = &mapper{pool: p, largest: largest{most: most / len(s.poolByID)}, groups: make(map[groupKey]*BlockGroup)}
	}
	moving := make(map[uint64]struct{}) // blocks in channels
	var ids []uint64
	for ch := range s.channelByID.all() {
		ids = ch.host.Blocks(ids[:0])
		for _, id := range ids {
			moving[id] = struct{}{}
		}
	}
	for b := range s.buffers.all() {
		mappers[b.account.pool].lent(b, moving)
	}
	var shown []drawn
	for _, m := range mappers {
		m.free()
		shown = append(shown, m.all...)
	}
	names := s.namesFor(shown)
	for _, p := range o.Pools {
		o.Maps = append(o.Maps, mappers[s.poolByID[p.Pool.ID]].describe(names))
	}
	return o
}

// Flows lists all channels, those that are closed and still have consumers included, by id.
func (s *Service) Flows() []Flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flows()
}

// flows is Flows with s.mu held.
func (s *Service) flows() []Flow {
	list := make([]Flow, 0, s.channelByID.len())
	for ch := range s.channelByID.all() {
		list = append(list, ch.flow())
	}
	return list
}

// flow describes the channel. Service.mu is held.
func (ch *channel) flow() Flow {
	f := Flow{ChannelStatus: ch.status()}
	for _, m := range ch.members {
		if m.entered && !m.left {
			f.Members = append(f.Members, FlowMember{Session: m.session.id, Role: m.role(), Slot: m.Slot, Behind: ch.host.Behind(m.Member)})
		}
	}
	slices.SortFunc(f.Members, func(a, b FlowMember) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Session, b.Session), cmp.Compare(b.Behind, a.Behind))
	})
	return f
}

// holders describes the sessions, and ended sessions whose processes still keep blocks. Service.mu is held.
func (s *Service) holders() []Holder {
	wants, left := make(map[*Session][]uint64), make(map[*Session]uint64)
	for _, p := range s.poolByID {
		for b := range p.charged {
			if b.state != blockHeld {
				continue
			}
			for one := range b.kept.left.all() {
				left[one] += b.size
			}
		}
		for one := range p.wanting {
			wants[one] = append(wants[one], p.info.ID)
		}
	}
	list := make([]Holder, 0, s.sessions.len()+len(left))
	for one := range s.sessions.all() {
		slices.Sort(wants[one])
		list = append(list, Holder{SessionInfo: one.info(), Wants: wants[one]})
	}
	for one, bytes := range left {
		h := Holder{SessionInfo: one.info(), Ended: true}
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

// drawn is a block that is described by itself.
type drawn struct {
	*block
	group  *BlockGroup // the group that it would be in
	buffer *buffer     // the buffer that uses it; nil: none
}

// largest keeps the largest of the blocks that it is given; of blocks of one size, those with the smaller ids. It is a heap with the
// smallest on top.
type largest struct {
	most int
	all  []drawn
}

func before(a, b drawn) int { return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.id, b.id)) }

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

// mapper counts the blocks of a pool, and keeps the largest.
type mapper struct {
	largest
	pool   *Pool
	groups map[groupKey]*BlockGroup

	key  groupKey // of the last lookup: many blocks in a row are in one group
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

func (m *mapper) count(b *block, of *buffer, use BlockUse, session uint64) {
	g := m.group(use, session)
	g.Blocks++
	g.Bytes += b.size
	m.add(drawn{b, g, of})
}

// lent counts the block of a buffer; moving are blocks in channels. Service.mu is held.
func (m *mapper) lent(b *buffer, moving map[uint64]struct{}) {
	use := BlockNamed
	switch {
	case b.frames > 0:
		use = BlockInChannel
	case b.writer != nil:
		use = BlockWritten
		if _, moves := moving[b.block.id]; moves {
			use = BlockInChannel
		}
	case b.readers.len() > 0:
		use = BlockRead
	}
	m.count(b.block, b, use, b.account.session)
}

// free counts the blocks that no buffer uses. Service.mu is held.
func (m *mapper) free() {
	p := m.pool
	for _, list := range p.cache {
		for _, b := range list {
			m.count(b, nil, BlockFree, 0)
		}
	}
	for _, list := range p.pending {
		for _, e := range list.all {
			if !e.stale() {
				m.count(e.block, nil, BlockFree, 0)
			}
		}
	}
	for b := range p.charged {
		if b.state != blockHeld {
			continue
		}
		of := uint64(0)
		for one := range b.kept.left.all() {
			of = max(of, one.id)
		}
		m.count(b, nil, BlockHeld, of)
	}
	rest := p.reserved // less all that was counted: blocks that are being allocated or freed
	blocks := p.blocks
	for _, g := range m.groups {
		rest -= g.Bytes
		blocks -= g.Blocks
	}
	if rest > 0 {
		*m.group(BlockReturning, 0) = BlockGroup{Use: BlockReturning, Bytes: rest, Blocks: blocks}
	}
}

// describe returns the map. Service.mu is held.
func (m *mapper) describe(names map[*buffer]string) (made PoolMap) {
	slices.SortFunc(m.all, before)
	for _, one := range m.all {
		one.group.Bytes -= one.size
		one.group.Blocks--
		made.Blocks = append(made.Blocks, one.describe(m.pool.svc, names))
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

// namesFor finds the first name of each of these buffers that has names. Service.mu is held.
func (s *Service) namesFor(all []drawn) map[*buffer]string {
	names := make(map[*buffer]string)
	for _, one := range all {
		if one.buffer != nil && one.buffer.names > 0 {
			names[one.buffer] = ""
		}
	}
	if len(names) == 0 {
		return nil
	}
	for n := range s.names.all() {
		if have, ok := names[n.buffer]; ok && have == "" {
			names[n.buffer] = n.text
		}
	}
	return names
}

func (one drawn) describe(s *Service, names map[*buffer]string) BlockInfo {
	info := BlockInfo{ID: one.id, Bytes: one.size, Use: one.group.Use, Session: one.group.Session, Mapped: one.mapped.len()}
	b := one.buffer
	if b == nil {
		return info
	}
	b.checkContent()
	info.Buffer, info.BufferBytes, info.Tensor, info.Failed = b.id, b.bytes, b.tensor, b.failed
	info.Age = time.Since(s.began).Truncate(time.Second) - time.Duration(b.made)*time.Second
	info.Name = names[b]
	if b.writer != nil {
		info.Writer = b.writer.session.id
	}
	info.Readers, info.Reads = b.readersOf(), b.readers.len()
	return info
}
