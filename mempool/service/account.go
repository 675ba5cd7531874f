package service

import (
	"fmt"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/situation"
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

// account counts the bytes of the blocks that the buffers of a session use in a pool. A buffer can exist longer than its session, and keeps
// its pointer to the account after the session has ended.
type account struct {
	pool    *Pool
	session uint64
	uid     uint32
	bytes   uint64
}

// add counts a block of size bytes. remove undoes add. The caller holds Service.mu.
func (a *account) add(size uint64) {
	a.bytes += size
	a.pool.users.add(a.uid, int(size))
}

func (a *account) remove(size uint64) {
	a.bytes -= size
	a.pool.users.add(a.uid, -int(size))
}

// keeper is a process of a user. The process may keep free blocks. Other processes cannot use a free block while a process keeps it.
// Service.mu guards the keeper.
type keeper struct {
	uid      uint32
	process  uint64           // 0: the process is not known, and the keeper belongs to one session alone
	sessions int              // for how many sessions of the process the service still holds something
	kept     map[*Pool]uint64 // bytes of the free blocks that the process keeps
}

type keeperKey struct {
	process uint64
	uid     uint32
}

// keeper returns the keeper of a session that begins. The caller holds s.mu.
func (s *Service) keeper(p mempool.Peer) *keeper {
	key := keeperKey{p.Process, p.UID}
	k := s.keepers[key]
	if k == nil {
		k = &keeper{uid: p.UID, process: p.Process, kept: make(map[*Pool]uint64)}
		if p.Process != 0 {
			s.keepers[key] = k
		}
	}
	k.sessions++
	return k
}

// leave removes a session from its keeper. The caller calls it when the service holds nothing for the session any more. When the last
// session of a keeper leaves, leave also deletes the keeper. The caller holds s.mu.
func (s *Service) leave(k *keeper) {
	if k.sessions--; k.sessions == 0 && k.process != 0 {
		delete(s.keepers, keeperKey{k.process, k.uid})
	}
}

// keeping says which processes keep a free block. Service.mu guards keeping.
type keeping struct {
	left    smallSet[*Session] // ended sessions that had a lease on the block, while their process may still touch the block
	keepers []*keeper          // the processes that the block counts for
	since   uint64             // the value of Pool.lastPending when the block became pending; 0: it is not pending
}

// keeping returns b.kept. The first call makes b.kept. The caller holds Service.mu.
func (b *block) keeping() *keeping {
	if b.kept == nil {
		b.kept = new(keeping)
	}
	return b.kept
}

// charge finds out which processes keep b now, and makes b count for exactly these processes. The result `fewer` is true if fewer processes
// keep b than before. The caller holds Service.mu.
func (p *Pool) charge(b *block) (fewer bool) {
	if b.kept == nil && len(b.fences) == 0 && b.state != blockRecalling {
		return false
	}
	k := b.keeping()
	before := len(k.keepers)
	p.count(b, -int(b.size))
	k.keepers = k.keepers[:0]
	keeps := func(s *Session) {
		if !slices.Contains(k.keepers, s.keeper) {
			k.keepers = append(k.keepers, s.keeper)
		}
	}
	if b.state != blockLeased && b.state != blockFreed {
		for s := range k.left.all() {
			keeps(s)
		}
		for _, t := range b.fences {
			if !t.over() {
				keeps(t.timeline.session)
			}
		}
	}
	if b.state == blockRecalling {
		for s := range b.mapped.all() {
			keeps(s)
		}
	}
	fewer = len(k.keepers) < before
	if len(k.keepers) == 0 {
		delete(p.charged, b)
		return fewer
	}
	p.charged[b] = struct{}{}
	p.count(b, int(b.size))
	return fewer
}

// count adds n, which may be negative, to the bytes that b's keepers keep, and to the bytes that count for their users. The caller holds
// Service.mu.
func (p *Pool) count(b *block, n int) {
	keepers := b.kept.keepers
	for i, k := range keepers {
		if k.kept[p] += uint64(n); k.kept[p] == 0 {
			delete(k.kept, p)
		}
		if !slices.ContainsFunc(keepers[:i], func(o *keeper) bool { return o.uid == k.uid }) {
			p.users.add(k.uid, n)
		}
	}
}

// These constants limit how many blocks recharge checks in one call, because all sessions wait for Service.mu during the call. If at most
// fewCharged blocks count for processes, every call checks all these blocks. If more blocks count, recharge checks blocks at most once in
// the time drainRest, and then at most manyCharged of them.
const (
	fewCharged  = 64
	manyCharged = 1024
)

// recharge checks again which processes keep the free blocks that count for processes. It must check the blocks, because a GPU does not
// tell the service when its work on a block is done. If more than manyCharged blocks count, recharge checks a random part of them. The
// caller holds Service.mu.
func (p *Pool) recharge() {
	if len(p.charged) > fewCharged {
		if time.Since(p.recharged) < drainRest {
			return
		}
		p.recharged = time.Now()
	}
	left, fewer := manyCharged, false
	for b := range p.charged { // the order of the blocks is random
		if left--; left < 0 {
			break
		}
		if p.lookAgain(b) {
			fewer = true
		}
	}
	if fewer {
		p.waiters.broadcast()
	}
}

// watchCharged starts a goroutine that calls recharge again and again, with a pause of drainRest before each call. After each call, the
// goroutine goes on only if some blocks count for a process, and if an allocation waits for room or has skipped pending blocks (free blocks
// on which work is under way) since the previous call of recharge. The caller holds Service.mu.
func (p *Pool) watchCharged() {
	if p.watched || len(p.charged) == 0 {
		return
	}
	p.watched = true
	p.svc.drains.Go(func() {
		for again := true; again; {
			time.Sleep(drainRest)
			p.svc.mu.Lock()
			p.recharge()
			again = len(p.charged) > 0 && (len(p.waiters.lines) > 0 || p.passed)
			p.watched, p.passed = again, false
			p.svc.mu.Unlock()
		}
	})
}

// counts returns how many bytes in p count for the session, and how many of these bytes are in free blocks that the session's process
// keeps. The caller holds Service.mu.
func (s *Session) counts(p *Pool) (bytes, kept uint64) {
	kept = s.keeper.kept[p]
	return s.account(p).bytes + kept, kept
}

// chargeable returns an error if the session may not take size more bytes in p. The caller holds Service.mu.
func (s *Session) chargeable(p *Pool, size uint64) error {
	if !p.bounded() {
		return nil
	}
	err := s.within(p, size)
	if err != nil && len(p.charged) > 0 {
		p.recharge()
		err = s.within(p, size)
	}
	return err
}

// bounded says whether the pool has a limit for each session or for each user.
func (p *Pool) bounded() bool { return p.info.SessionBytes > 0 || p.info.UserBytes > 0 }

// within does the same as chargeable, without a call of recharge. The caller holds Service.mu.
func (s *Session) within(p *Pool, size uint64) error {
	var err error
	bytes, kept := s.counts(p)
	user := uint64(p.users[s.peer.UID])
	switch session, most := p.info.SessionBytes, p.info.UserBytes; {
	case session > 0 && bytes+size > session:
		err = situation.Of(mempool.ErrLimit, "session %d has %s, asks for %s more, and one session may take %s in pool %q: release some, or make a pool with a "+
			"larger session_bytes", s.id, bytesize.Text(bytes), bytesize.Text(size), bytesize.Text(session), p.info.Name)
	case most > 0 && user+size > most:
		err = situation.Of(mempool.ErrLimit, "%v has %s, asks for %s more, and one user may take %s in pool %q: release some in any session of that user, or "+
			"make a pool with a larger user_bytes", s.peer, bytesize.Text(user), bytesize.Text(size), bytesize.Text(most), p.info.Name)
	default:
		return nil
	}
	if kept > 0 {
		err = fmt.Errorf("%w; %s of that are free blocks that no other session can use until the process has finished its work on them and "+
			"unmapped them (%w)", err, bytesize.Text(kept), mempool.ErrRecalling)
	}
	return err
}
