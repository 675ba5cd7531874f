package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/poolbridge/poolbridge/mempool"
)

// Check returns what is wrong with the ledger, each fault as a sentence. It returns nil if every rule of the ledger holds: each record is in
// the tables that it must be in and refers only to records that are there, and every sum is the sum of what it counts. A change of the
// ledger may break a rule only while its caller still holds the lock.
func (l *Ledger) Check() []string {
	c := &checker{Ledger: l, pools: make(map[*Pool]*sums), removed: make(map[*Pool]*sums), accounts: make(map[*Account]uint64), kept: make(map[*Keeper]map[*Pool]uint64),
		names: make(map[*Buffer]int), frames: make(map[*Buffer]int), references: make(map[*Timeline]int), used: make(map[*Block]*Buffer, l.Buffers.Len())}
	c.checkPoolTables()
	c.checkBlocks()
	c.checkNames()
	c.checkChannels()
	c.checkBuffers()
	c.checkLeases()
	c.checkTimelines()
	c.checkSessions()
	c.checkPools()
	return c.wrong
}

// Records returns how many records the ledger has.
func (l *Ledger) Records() int {
	return l.Sessions.Len() + l.Ended.Len() + len(l.Pools) + l.Blocks.Len() + l.Buffers.Len() + l.Leases.Len() + l.Names.Len() + len(l.Timelines) +
		l.Channels.Len() + l.members
}

// checker collects faults, and the sums of what it has seen.
type checker struct {
	*Ledger
	wrong      []string
	pools      map[*Pool]*sums
	removed    map[*Pool]*sums // destroyed pools of channels that still have consumers
	accounts   map[*Account]uint64
	kept       map[*Keeper]map[*Pool]uint64
	names      map[*Buffer]int // how many names each buffer has
	frames     map[*Buffer]int // how many channels retain each buffer
	references map[*Timeline]int
	used       map[*Block]*Buffer
}

// sums are the sums of a pool, as its records say.
type sums struct {
	leased, cached, held, used   uint64
	blocks, loose                int
	leases, buffers, names       int
	wholes                       int // buffers that are no ranges
	users                        Tally
	stuck, charged, listed, free int
	inUse, channels              int
	producers                    map[*Session]int
}

// known says whether a session is in the tables.
func (c *checker) known(s *Session) bool {
	if s.Ended {
		return c.Ended.Get(s.ID) == s
	}
	return c.Sessions.Get(s.ID) == s
}

// want notes a fault unless ok is true.
func (c *checker) want(ok bool, fault string, args ...any) {
	if !ok {
		c.wrong = append(c.wrong, fmt.Sprintf(fault, args...))
	}
}

// equal notes a fault unless a sum is right.
func equal[T comparable](c *checker, of, what string, have, want T) {
	if have != want {
		c.wrong = append(c.wrong, fmt.Sprintf("%s: %s is %v, and its records add up to %v", of, what, have, want))
	}
}

func (c *checker) checkPoolTables() {
	of := make(Tally)
	for id, p := range c.Pools {
		c.pools[p] = &sums{users: make(Tally), producers: make(map[*Session]int)}
		of.add(p.Maker, 1)
		c.want(p.Info.ID == id && id <= c.Last.Pool, "pool %d is in the table as %d, and the last id is %d", p.Info.ID, id, c.Last.Pool)
		c.want(p.Closing || c.PoolNames[p.Info.Name] == p, "pool %d is not found by its name %q", id, p.Info.Name)
		for g := range p.growing {
			s := c.pools[p]
			s.leased += g.size
			s.blocks++
			s.users.add(g.account.uid, int(g.size))
			c.accounts[g.account] += g.size
			c.want(g.account.pool == p, "a block that grows in pool %d counts in pool %d", id, g.account.pool.Info.ID)
		}
	}
	for name, p := range c.PoolNames {
		if p.Info.ID == 0 { // it is being made
			of.add(p.Maker, 1)
		}
		c.want(p.Info.Name == name && !p.Closing && (p.Info.ID == 0 || c.Pools[p.Info.ID] == p), "the name %q names pool %d, which is gone or closing", name, p.Info.ID)
	}
	c.want(maps.Equal(of, c.poolsOf), "the pools of each user are counted as %v, not %v", c.poolsOf, of)
}

func (c *checker) checkBlocks() {
	for id, b := range c.Blocks.After(0) {
		c.want(b.ID == id && id <= c.Last.Block, "block %d is in the table as %d, and the last id is %d", b.ID, id, c.Last.Block)
		s := c.pools[b.Pool]
		if s == nil {
			c.want(false, "block %d is in a pool that is gone", id)
			continue
		}
		s.blocks++
		switch b.State {
		case BlockLeased:
			s.leased += b.Size
			s.inUse++
		case BlockCached:
			s.cached += b.Size
			s.free++
			if !b.Pending() && b.Mapped.Len() == 0 {
				s.loose++
			}
		case BlockFreed:
			c.want(false, "block %d is freed, and still in the table", id)
		default:
			s.held += b.Size
		}
		if b.State == BlockStuck {
			s.stuck++
		}
		c.want(!b.Pending() || b.State == BlockCached, "block %d is %v, and counts as pending", id, b.State)
		c.want(b.Holds == 0 || b.State == BlockLeased || b.State == BlockHeld, "block %d is %v, and has %d holds", id, b.State, b.Holds)
		c.want(b.State != BlockHeld || b.Holds > 0, "block %d is held by nobody", id)
		c.checkFences(b.Fences, "block", id)
		for of := range b.Mapped.All() {
			c.want(c.known(of) && of.Mapped[id] == b, "session %d maps block %d, and does not know it", of.ID, id)
		}
		if b.kept != nil {
			c.checkKept(b, s)
		}
	}
}

// checkKept checks which processes keep a block.
func (c *checker) checkKept(b *Block, s *sums) {
	k := b.kept
	c.want(k.left.Len() <= int(b.Holds), "block %d has %d holds for %d sessions", b.ID, b.Holds, k.left.Len())
	for of := range k.left.All() {
		c.want(of.Ended && c.known(of), "session %d keeps block %d, and is not an ended one", of.ID, b.ID)
	}
	_, charged := b.Pool.charged[b]
	c.want(charged == (len(k.keepers) > 0), "block %d counts for %d processes, and the pool's set says %v", b.ID, len(k.keepers), charged)
	c.want(len(k.keepers) == 0 || b.State != BlockLeased, "block %d is leased, and counts for %d processes", b.ID, len(k.keepers))
	if charged {
		s.charged++
	}
	users := make(map[uint32]struct{})
	for i, of := range k.keepers {
		c.want(!slices.Contains(k.keepers[:i], of), "block %d counts twice for a process of user %d", b.ID, of.uid)
		if c.kept[of] == nil {
			c.kept[of] = make(map[*Pool]uint64)
		}
		c.kept[of][b.Pool] += b.Size
		if _, again := users[of.uid]; !again {
			users[of.uid] = struct{}{}
			s.users.add(of.uid, int(b.Size))
		}
	}
}

func (c *checker) checkFences(ts Fences, what string, id uint64) {
	for i, t := range ts {
		c.want(t.Validate() == nil && t.Timeline > 0 && t.Timeline <= c.Last.Timeline, "%s %d has the fence %+v, which cannot be", what, id, t)
		again := slices.ContainsFunc(ts[:i], func(o mempool.Fence) bool { return o.Timeline == t.Timeline && o.Word == t.Word })
		c.want(!again, "%s %d has two fences of word %d of timeline %d", what, id, t.Word, t.Timeline)
	}
}

func (c *checker) checkNames() {
	of := make(Tally)
	for text, n := range c.Names.After("") {
		c.want(n.Text == text, "the name %q is in the table as %q", n.Text, text)
		of.add(n.UID, 1)
		b := n.Buffer
		c.names[b]++
		if c.Buffers.Get(b.ID) != b {
			c.want(false, "the name %q names buffer %d, which is gone", text, b.ID)
			continue
		}
		if s := c.pools[b.Block.Pool]; s != nil {
			s.names++
		}
		c.want(b.Block.Pool.names.Get(text) == n, "the name %q is not in its pool", text)
		p := c.published[b.ID]
		c.want(p.name != "" && (p.name != text || p.version == n.Version), "buffer %d was last published as %q v%d, and has the name %q v%d", b.ID, p.name, p.version, text, n.Version)
		used := b.Writer != nil || b.Readers.Len() > 0 || b.Frames > 0
		c.want(!n.WhileUsed || n.Owner == nil && used && slices.Contains(c.whileUsed[b.ID], n), "the name %q should have ended with the last lease of buffer %d", text, b.ID)
		c.want(n.Owner == nil || !n.Owner.Ended && c.known(n.Owner) && n.Owner.Names[text] == n, "the name %q belongs to a session that does not have it", text)
	}
	c.want(maps.Equal(of, c.namesOf), "the names of each user are counted as %v, not %v", c.namesOf, of)
}

func (c *checker) checkChannels() {
	members := 0
	for id, ch := range c.Channels.After(0) {
		c.want(ch.Info.ID == id && id <= c.Last.Channel, "channel %d is in the table as %d, and the last id is %d", ch.Info.ID, id, c.Last.Channel)
		c.want(ch.Closed || c.ChannelNames[ch.Info.Name] == ch, "channel %d is not found by its name %q", id, ch.Info.Name)
		c.want(ch.Closed || ch.Alone.IsZero(), "channel %d is open, and counts as left by its consumers", id)
		c.want(ch.Info.Pool == ch.Pool.Info.ID, "channel %d is in pool %d, and says %d", id, ch.Pool.Info.ID, ch.Info.Pool)
		s := cmp.Or(c.pools[ch.Pool], c.removed[ch.Pool])
		if s == nil {
			c.want(ch.Closed && ch.Pool.Closing, "channel %d is in a pool that is gone", id)
			s = &sums{producers: make(map[*Session]int)}
			c.removed[ch.Pool] = s
		}
		s.channels++
		members += len(ch.Members)
		c.checkMembers(ch, s)
		for b, producers := range ch.Retained {
			c.frames[b]++
			c.want(c.Buffers.Get(b.ID) == b && b.Block.Pool == ch.Pool, "channel %d retains buffer %d, which is gone or in another pool", id, b.ID)
			c.want(len(producers) > 0, "channel %d retains buffer %d of no producer", id, b.ID)
			for _, m := range producers {
				c.want(m.Channel == ch && m.Role == Producer && m.Left, "channel %d retains buffer %d of member %d, which is no producer that left", id, b.ID, m.ID)
			}
		}
	}
	for name, ch := range c.ChannelNames {
		c.want(ch.Info.Name == name && !ch.Closed && c.Channels.Get(ch.Info.ID) == ch, "the name %q names channel %d, which is gone or closed", name, ch.Info.ID)
	}
	equal(c, "the service", "the number of members", c.members, members)
}

// checkMembers checks the members of a channel.
func (c *checker) checkMembers(ch *Channel, s *sums) {
	type seat struct {
		role MemberRole
		seat int
	}
	taken := make(map[seat]struct{})
	for id, m := range ch.Members {
		of := m.Session
		_, own := of.Members[m]
		c.want(m.ID == id && m.Channel == ch && id <= ch.LastMember, "member %d of channel %d is in the table as %d, and the last id is %d", m.ID, ch.Info.ID, id,
			ch.LastMember)
		c.want(own && (of.Ended || c.known(of)), "member %d of channel %d belongs to session %d, which does not have it", id, ch.Info.ID, of.ID)
		c.want(m.Left || !of.Ended, "member %d of channel %d has not left, and its session has ended", id, ch.Info.ID)
		c.want(m.Left || !m.Said, "member %d of channel %d said that it leaves, and has not left", id, ch.Info.ID)
		c.want(!m.Reserved || m.Role == Consumer && !m.Entered && ch.Info.Mode == mempool.Broadcast,
			"member %d of channel %d is reserved, and has entered or is no consumer of a broadcast", id, ch.Info.ID)
		c.want(m.Role == Producer || m.Role == Consumer, "member %d of channel %d has the role %q", id, ch.Info.ID, m.Role)
		_, again := taken[seat{m.Role, m.Seat}]
		c.want(!again, "two %ss of channel %d have seat %d", m.Role, ch.Info.ID, m.Seat)
		taken[seat{m.Role, m.Seat}] = struct{}{}
		if t := m.Timeline; t != nil {
			c.references[t]++
			c.want(c.Timelines[t.ID] == t && t.Session == of && t.Unknown, "member %d of channel %d writes timeline %d, which is gone or another's", id, ch.Info.ID, t.ID)
		}
		if m.Role == Producer && !m.Left {
			s.producers[of]++
		}
	}
}

func (c *checker) checkTimelines() {
	for id, t := range c.Timelines {
		of := t.Session
		c.want(t.ID == id && id <= c.Last.Timeline, "timeline %d is in the table as %d, and the last id is %d", t.ID, id, c.Last.Timeline)
		c.want(of.Timeline == t && (t.Dead || c.known(of)), "timeline %d belongs to session %d, which is gone or has another", id, of.ID)
		c.want(!t.Dead || of.Ended && t.references > 0, "timeline %d is over, and its session is not, or nothing refers to it", id)
		c.want(t.Sealed || len(t.Promised)+t.references == 0, "timeline %d is not sealed, and has fences", id)
		c.want(len(t.Promised) <= mempool.TimelineWords, "timeline %d has fences of %d words", id, len(t.Promised))
		equal(c, fmt.Sprintf("timeline %d", id), "the number of references", t.references, c.references[t])
		for s := range t.Shown {
			c.want(!s.Ended && c.known(s), "timeline %d is shown to session %d, which has ended", id, s.ID)
		}
	}
}

func (c *checker) checkBuffers() {
	ranges := make(map[uint64]int)
	for id, b := range c.Buffers.After(0) {
		c.want(b.ID == id && id <= c.Last.Buffer, "buffer %d is in the table as %d, and the last id is %d", b.ID, id, c.Last.Buffer)
		block := b.Block
		s := c.pools[block.Pool]
		if s == nil || c.Blocks.Get(block.ID) != block {
			c.want(false, "buffer %d uses block %d, which is gone", id, block.ID)
			continue
		}
		c.want(block.State == BlockLeased, "buffer %d uses block %d, which is %v", id, block.ID, block.State)
		c.want(block.Generation == b.Generation, "buffer %d has generation %d of block %d, which is at %d", id, b.Generation, block.ID, block.Generation)
		c.want(b.Bytes <= block.Size, "buffer %d has %d bytes in block %d of %d", id, b.Bytes, block.ID, block.Size)
		s.buffers++
		if whole := b.Whole(); whole != nil {
			ranges[whole.ID]++
			c.want(c.Buffers.Get(whole.ID) == whole && whole.Whole() == nil && whole.Block == block && b.Account == whole.Account,
				"buffer %d is a range of buffer %d, which is gone, a range, or in another block or account", id, whole.ID)
			c.want(b.Base() <= whole.Bytes && b.Bytes <= whole.Bytes-b.Base(), "buffer %d reaches beyond buffer %d", id, whole.ID)
		} else {
			c.want(c.used[block] == nil, "two buffers use block %d", block.ID)
			c.used[block] = b
			s.wholes++
			s.used += b.Bytes
			s.users.add(b.Account.uid, int(block.Size))
			c.accounts[b.Account] += block.Size
		}
		c.want(b.Account.pool == block.Pool, "buffer %d counts in another pool than its own", id)
		equal(c, fmt.Sprintf("buffer %d", id), "the number of names", int(b.Names), c.names[b])
		c.want(!b.Unused(), "nothing holds buffer %d", id)
		equal(c, fmt.Sprintf("buffer %d", id), "the number of channels", int(b.Frames), c.frames[b])
		c.want(b.Frames > 0 || !b.Doubted, "buffer %d is doubted, and in no channel", id)
		c.want(b.Writer == nil || b.Readers.Len() == 0, "buffer %d has a writer and %d readers", id, b.Readers.Len())
		if b.Writer != nil {
			c.want(b.Writer.Write && b.Writer.Buffer == b && c.Leases.Get(b.Writer.ID) == b.Writer, "buffer %d has a writer without such a lease", id)
		}
		for r := range b.Readers.All() {
			c.want(!r.Write && r.Buffer == b && c.Leases.Get(r.ID) == r, "buffer %d has a reader without such a lease", id)
		}
		c.checkFences(b.Ready, "buffer", id)
	}
	for id, d := range c.divisions {
		equal(c, fmt.Sprintf("buffer %d", id), "the number of ranges", d.ranges, ranges[id])
		c.want(c.Buffers.Get(id) != nil && (d.whole == nil) != (d.ranges == 0), "there is a division of buffer %d, which is gone, or no range and has none", id)
	}
	for id := range c.reasons {
		b := c.Buffers.Get(id)
		c.want(b != nil && b.Failed, "there is a reason why buffer %d failed, which is gone or has not failed", id)
	}
	for id := range c.Exports {
		c.want(c.Blocks.Get(id) != nil, "there is an export of block %d, which is gone", id)
	}
	for id := range c.events {
		c.want(c.Buffers.Get(id) != nil, "there is an event of buffer %d, which is gone", id)
	}
	for id := range c.published {
		c.want(c.Buffers.Get(id) != nil, "there is a publication of buffer %d, which is gone", id)
	}
}

func (c *checker) checkLeases() {
	for id, l := range c.Leases.After(0) {
		c.want(l.ID == id && id <= c.Last.Lease, "lease %d is in the table as %d, and the last id is %d", l.ID, id, c.Last.Lease)
		c.want(!l.Ended, "lease %d has ended, and is in the table", id)
		c.want(!l.Session.Ended && c.known(l.Session) && l.Session.Leases[id] == l, "lease %d belongs to session %d, which does not have it", id, l.Session.ID)
		b := l.Buffer
		if c.Buffers.Get(b.ID) != b {
			c.want(false, "lease %d is on buffer %d, which is gone", id, b.ID)
			continue
		}
		if s := c.pools[b.Block.Pool]; s != nil {
			s.leases++
		}
		if l.Write {
			c.want(b.Writer == l, "lease %d writes buffer %d, which has another writer", id, b.ID)
		} else {
			c.want(b.Readers.Has(l), "lease %d reads buffer %d, which does not know it", id, b.ID)
		}
		c.checkFences(l.Wait, "lease", id)
		for _, f := range l.Wait {
			t := c.Timelines[f.Timeline]
			if t == nil {
				c.want(false, "lease %d waits for timeline %d, which is gone", id, f.Timeline)
				continue
			}
			c.references[t]++
			_, shown := t.Shown[l.Session]
			c.want(shown, "lease %d waits for timeline %d, which its session may not see", id, f.Timeline)
		}
	}
}

func (c *checker) checkSessions() {
	of, keepers := make(Tally), make(map[*Keeper]int)
	for id, s := range c.Sessions.After(0) {
		of.add(s.Peer.UID, 1)
		c.want(s.ID == id && !s.Ended && id <= c.Last.Session, "session %d is in the table as %d, has ended, or is newer than the last, %d", s.ID, id, c.Last.Session)
		c.checkSession(s)
		keepers[s.Keeper]++
		for id, l := range s.Leases {
			c.want(l.ID == id && l.Session == s && c.Leases.Get(id) == l, "session %d has lease %d, which is gone or another's", s.ID, id)
		}
		for text, n := range s.Names {
			c.want(n.Owner == s && c.Names.Get(text) == n, "session %d has the name %q, which is gone or another's", s.ID, text)
		}
	}
	for id, s := range c.Ended.After(0) {
		c.want(s.ID == id && s.Ended, "session %d is among the ended as %d, and has ended: %v", s.ID, id, s.Ended)
		c.want(len(s.Leases)+len(s.Names) == 0, "session %d has ended, and has %d leases and %d names", id, len(s.Leases), len(s.Names))
		c.checkSession(s)
		keepers[s.Keeper]++
	}
	c.want(maps.Equal(of, c.sessionsOf), "the sessions of each user are counted as %v, not %v", c.sessionsOf, of)
	for key, k := range c.keepers {
		c.want(k.keeperKey == key && keepers[k] > 0, "process %d of user %d is known, and has no session", key.process, key.uid)
	}
	for k, n := range keepers {
		equal(c, fmt.Sprintf("process %d of user %d", k.process, k.uid), "the number of sessions", k.sessions, n)
		if c.kept[k] == nil {
			c.kept[k] = nil
		}
	}
	for k, bytes := range c.kept { // also of processes whose sessions are forgotten
		c.want(maps.Equal(k.kept, bytes), "process %d of user %d keeps other bytes than its blocks say", k.process, k.uid)
	}
}

func (c *checker) checkSession(s *Session) {
	c.want(s.Keeper.uid == s.Peer.UID && s.Keeper.process == s.Peer.Process, "session %d counts for another process", s.ID)
	c.want(s.Keeper.process == 0 || c.keepers[s.Keeper.keeperKey] == s.Keeper, "the process of session %d is not known", s.ID)
	for id, b := range s.Mapped {
		c.want(b.ID == id && c.Blocks.Get(id) == b && b.Mapped.Has(s), "session %d maps block %d, which is gone or does not know it", s.ID, id)
	}
	for m := range s.Members {
		c.want(m.Session == s && m.Channel.Members[m.ID] == m && c.Channels.Get(m.Channel.Info.ID) == m.Channel, "session %d has member %d of channel %d, which is gone",
			s.ID, m.ID, m.Channel.Info.ID)
	}
	if t := s.Timeline; t != nil {
		c.want(t.Session == s && (t.Dead || c.Timelines[t.ID] == t), "session %d has timeline %d, which is gone or another's", s.ID, t.ID)
	}
	for p, a := range s.Accounts {
		c.want(c.Pools[p.Info.ID] == p && a.pool == p && a.session == s.ID && a.uid == s.Peer.UID, "session %d has an account in pool %d that is another's", s.ID, p.Info.ID)
		if _, counted := c.accounts[a]; !counted {
			c.accounts[a] = 0
		}
	}
}

func (c *checker) checkPools() {
	for a, bytes := range c.accounts {
		equal(c, fmt.Sprintf("the account of session %d in pool %d", a.session, a.pool.Info.ID), "the number of bytes", a.bytes, bytes)
	}
	for p, s := range c.pools {
		of := fmt.Sprintf("pool %d", p.Info.ID)
		c.want(p.Closing || !p.Closed, "%s is closed, and not being destroyed", of)
		equal(c, of, "reserved", p.Reserved, s.leased+s.cached+s.held)
		c.want(p.Reserved <= p.Info.MaxBytes, "%s has %d bytes reserved, more than its %d", of, p.Reserved, p.Info.MaxBytes)
		equal(c, of, "leased", p.Leased, s.leased)
		equal(c, of, "cached", p.Cached, s.cached)
		equal(c, of, "held", p.Held, s.held)
		equal(c, of, "used", p.Used, s.used)
		equal(c, of, "the number of blocks", p.Blocks, s.blocks)
		equal(c, of, "the number of leases", p.Has.Leases, s.leases)
		equal(c, of, "the number of buffers", p.Has.Buffers, s.buffers)
		equal(c, of, "the number of buffers with a block of their own, which is that of leased blocks", s.inUse, s.wholes)
		equal(c, of, "the number of names", p.Has.Names, s.names)
		equal(c, of, "the number of names in the pool's table", p.names.Len(), s.names)
		equal(c, of, "the number of free blocks that no session maps", p.loose, s.loose)
		equal(c, of, "the number of blocks that could not be freed", len(p.stuck), s.stuck)
		equal(c, of, "the number of blocks that count for processes", len(p.charged), s.charged)
		c.want(maps.Equal(p.users, s.users), "%s: the bytes of each user are counted as %v, and add up to %v", of, p.users, s.users)
		c.checkFree(p, s)
	}
	for _, pools := range []map[*Pool]*sums{c.pools, c.removed} {
		for p, s := range pools {
			of := fmt.Sprintf("pool %d", p.Info.ID)
			equal(c, of, "the number of channels", p.Channels, s.channels)
			c.want(maps.Equal(p.Producers, s.producers), "%s: the producers are counted as those of %d sessions, not %d, or their numbers differ", of, len(p.Producers),
				len(s.producers))
		}
	}
}

// checkFree checks the lists of a pool's free blocks.
func (c *checker) checkFree(p *Pool, s *sums) {
	for size, list := range p.cache {
		for _, b := range list {
			s.listed++
			c.want(b.Pool == p && b.Size == size && b.State == BlockCached && !b.Pending() && len(b.Fences) == 0, "block %d of pool %d is listed as free, and is %v",
				b.ID, p.Info.ID, b.State)
		}
	}
	for size, l := range p.pending {
		count := 0
		for _, e := range l.all {
			if e.stale() {
				continue
			}
			count++
			c.want(e.block.Pool == p && e.block.Size == size && e.block.State == BlockCached, "block %d of pool %d is listed as pending, and is %v",
				e.block.ID, p.Info.ID, e.block.State)
		}
		s.listed += count
		c.want(count > 0 && count == l.count, "pool %d has %d pending blocks of %d bytes, and counts %d", p.Info.ID, count, size, l.count)
	}
	equal(c, fmt.Sprintf("pool %d", p.Info.ID), "the number of listed free blocks", s.listed, s.free)
	for _, b := range p.stuck {
		c.want(b.State == BlockStuck && b.Pool == p, "block %d of pool %d is listed as not freed, and is %v", b.ID, p.Info.ID, b.State)
	}
}
