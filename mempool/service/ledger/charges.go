package ledger

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// A pool can have a limit of bytes for each session (session_bytes) and for each user (user_bytes). This file counts the bytes of blocks
// for sessions and users, and compares them with these limits. A block counts
//
//   - while a buffer uses the block: for the session that allocated the buffer, and for the user of that session;
//   - while the block is free, but a process keeps other processes from using it: for that process, and for the user of that process.
//
// A process keeps a free block in three cases: a session of the process ended while it had a lease on the block, and the process still
// runs; work of the process on the block is not done; the service has asked the process to unmap the block, and the process still maps it.

// Account counts the bytes of the blocks that the buffers of a session use in a pool. A buffer can exist longer than its session, and keeps
// its pointer to the account after the session has ended.
type Account struct {
	pool    *Pool
	session uint64
	uid     uint32
	bytes   uint64
}

// Pool returns the pool of the account.
func (a *Account) Pool() *Pool { return a.pool }

// Session returns the id of the account's session.
func (a *Account) Session() uint64 { return a.session }

// Account returns the session's account in p. The first call makes the account.
func (s *Session) Account(p *Pool) *Account {
	a := s.Accounts[p]
	if a == nil {
		a = &Account{pool: p, session: s.ID, uid: s.Peer.UID}
		s.Accounts[p] = a
	}
	return a
}

// Holdings says for people how many bytes the buffers of the session take in each pool.
func (s *Session) Holdings() string {
	held := slices.DeleteFunc(slices.Collect(maps.Values(s.Accounts)), func(a *Account) bool { return a.bytes == 0 })
	slices.SortFunc(held, func(a, b *Account) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.pool.Info.ID, b.pool.Info.ID))
	})
	var texts []string
	for _, a := range held[:min(len(held), maxHoldings)] {
		texts = append(texts, fmt.Sprintf("%s in pool %q", bytesize.Text(a.bytes), a.pool.Info.Name))
	}
	if more := len(held) - len(texts); more > 0 {
		texts = append(texts, "memory in "+count.Of(more, "other pool"))
	}
	return cmp.Or(strings.Join(texts, ", "), "no memory")
}

// maxHoldings is how many pools [Session.Holdings] names.
const maxHoldings = 4

func (a *Account) add(size uint64) {
	a.bytes += size
	a.pool.users.add(a.uid, int(size))
}

func (a *Account) remove(size uint64) {
	a.bytes -= size
	a.pool.users.add(a.uid, -int(size))
}

// GiveUp undoes [Account.Grow] or [Account.Reuse] for a block that gets no buffer.
func (a *Account) GiveUp(b *Block) { a.remove(b.Size) }

// Keeper is a process of a user. The process may keep free blocks. Other processes cannot use a free block while a process keeps it.
type Keeper struct {
	keeperKey
	sessions int              // for how many sessions of the process the service still holds something
	kept     map[*Pool]uint64 // bytes of the free blocks that the process keeps
}

// keepers has the known processes for whose sessions the service still holds something.
type keepers map[keeperKey]*Keeper

type keeperKey struct {
	process uint64 // 0: the process is not known, and the keeper belongs to one session alone
	uid     uint32
}

// of returns the keeper of a session that begins.
func (ks keepers) of(p mempool.Peer) *Keeper {
	key := keeperKey{p.Process, p.UID}
	k := ks[key]
	if k == nil {
		k = &Keeper{keeperKey: key, kept: make(map[*Pool]uint64)}
		if p.Process != 0 {
			ks[key] = k
		}
	}
	k.sessions++
	return k
}

// drop notes that the service holds nothing more for a session of the process.
func (ks keepers) drop(k *Keeper) {
	if k.sessions--; k.sessions == 0 && k.process != 0 {
		delete(ks, k.keeperKey)
	}
}

// keeping says which processes keep a free block.
type keeping struct {
	left    SmallSet[*Session] // ended sessions that had a lease on the block, while their process may still touch the block
	keepers []*Keeper          // the processes that the block counts for
	since   uint64             // the value of Pool.lastPending when the block became pending; 0: it is not pending
}

// when returns the field `since`; k may be nil.
func (k *keeping) when() uint64 {
	if k == nil {
		return 0
	}
	return k.since
}

// keeping returns b.kept. The first call makes b.kept.
func (b *Block) keeping() *keeping {
	if b.kept == nil {
		b.kept = new(keeping)
	}
	return b.kept
}

// Kept says whether some process keeps the block.
func (b *Block) Kept() bool { return b.kept != nil && len(b.kept.keepers) > 0 }

// AllLeft yields the ended sessions whose process may still touch the block.
func (b *Block) AllLeft() iter.Seq[*Session] {
	if b.kept == nil {
		return func(func(*Session) bool) {}
	}
	return b.kept.left.All()
}

// Charge finds out which processes keep b now, and makes b count for exactly these processes. The caller has removed the fences of b that
// are reached. The result `fewer` is true if fewer processes keep b than before.
func (b *Block) Charge() (fewer bool) {
	if b.kept == nil && len(b.Fences) == 0 && b.State != BlockRecalling {
		return false
	}
	p, k := b.Pool, b.keeping()
	before := len(k.keepers)
	b.count(-int(b.Size))
	k.keepers = k.keepers[:0]
	keeps := func(s *Session) {
		if !slices.Contains(k.keepers, s.Keeper) {
			k.keepers = append(k.keepers, s.Keeper)
		}
	}
	if b.State != BlockLeased && b.State != BlockFreed {
		for s := range k.left.All() {
			keeps(s)
		}
		for _, t := range b.Fences {
			keeps(p.ledger.Timelines[t.Timeline].Session)
		}
	}
	if b.State == BlockRecalling {
		for s := range b.Mapped.All() {
			keeps(s)
		}
	}
	fewer = len(k.keepers) < before
	if len(k.keepers) == 0 {
		delete(p.charged, b)
		return fewer
	}
	p.charged[b] = struct{}{}
	b.count(int(b.Size))
	return fewer
}

// count adds n, which may be negative, to the bytes that b's keepers keep, and to the bytes that count for their users.
func (b *Block) count(n int) {
	p, keepers := b.Pool, b.kept.keepers
	for i, k := range keepers {
		if k.kept[p] += uint64(n); k.kept[p] == 0 {
			delete(k.kept, p)
		}
		if !slices.ContainsFunc(keepers[:i], func(o *Keeper) bool { return o.uid == k.uid }) {
			p.users.add(k.uid, n)
		}
	}
}

// Charged returns how many free blocks count for processes.
func (p *Pool) Charged() int { return len(p.charged) }

// AllCharged yields the free blocks that count for processes, in a random order. During the loop, the caller may remove blocks.
func (p *Pool) AllCharged() iter.Seq[*Block] { return maps.Keys(p.charged) }

// Counts returns how many bytes in p count for the session, and how many of these bytes are in free blocks that the session's process
// keeps.
func (s *Session) Counts(p *Pool) (bytes, kept uint64) {
	kept = s.Keeper.kept[p]
	return s.Account(p).bytes + kept, kept
}

// Within returns an error if the session may not take size more bytes in p.
func (s *Session) Within(p *Pool, size uint64) error {
	var err error
	bytes, kept := s.Counts(p)
	user := p.UserBytes(s.Peer.UID)
	switch session, most := p.Info.SessionBytes, p.Info.UserBytes; {
	case session > 0 && bytes+size > session:
		err = typed.Errorf(mempool.ErrLimit, "session %d has %s, asks for %s more, and one session may take %s in pool %q: release some, or make a pool with a "+
			"larger session_bytes", s.ID, bytesize.Text(bytes), bytesize.Text(size), bytesize.Text(session), p.Info.Name)
	case most > 0 && user+size > most:
		err = typed.Errorf(mempool.ErrLimit, "%v has %s, asks for %s more, and one user may take %s in pool %q: release some in any session of that user, or "+
			"make a pool with a larger user_bytes", s.Peer, bytesize.Text(user), bytesize.Text(size), bytesize.Text(most), p.Info.Name)
	default:
		return nil
	}
	if kept > 0 {
		err = fmt.Errorf("%w; %s of that are free blocks that no other session can use until the process has finished its work on them and "+
			"unmapped them (%w)", err, bytesize.Text(kept), mempool.ErrRecalling)
	}
	return err
}
