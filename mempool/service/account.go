package service

import (
	"fmt"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// This file counts blocks against the limits of a pool for one session (session_bytes) and for one user (user_bytes). A block counts
//
//   - while a buffer uses it: for the session that allocated the buffer, and for its user;
//   - while it is free, but a process keeps others from using it: for that process, and for its user. A process keeps a block after one
//     of its sessions ended with a lease on the block, until the process is gone; while its work on the block is under way; and from when
//     it was asked to unmap the block until it has.

// account counts the bytes of the blocks of a session's buffers in a pool. Buffers refer to the account also after the session ended.
type account struct {
	pool    *Pool
	session uint64
	uid     uint32
	bytes   uint64
}

// add counts a block of size bytes. remove undoes add. Service.mu is held.
func (a *account) add(size uint64) {
	a.bytes += size
	a.pool.users.add(a.uid, int(size))
}

func (a *account) remove(size uint64) {
	a.bytes -= size
	a.pool.users.add(a.uid, -int(size))
}

// keeper is a process of a user. The process may keep free blocks that others cannot use. Service.mu guards the keeper.
type keeper struct {
	uid      uint32
	process  uint64           // 0: not known, and the keeper belongs to one session alone
	sessions int              // how many of its sessions still hold something
	kept     map[*Pool]uint64 // bytes
}

type keeperKey struct {
	process uint64
	uid     uint32
}

// keeper returns the keeper of a session that begins. s.mu is held.
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

// leave undoes Service.keeper for a session that holds nothing any more. The last session of a keeper removes it. s.mu is held.
func (s *Service) leave(k *keeper) {
	if k.sessions--; k.sessions == 0 && k.process != 0 {
		delete(s.keepers, keeperKey{k.process, k.uid})
	}
}

// keeping says which processes keep a free block. Service.mu guards it.
type keeping struct {
	left    smallSet[*Session] // ended sessions that had a lease on it, while their process may still touch it
	keepers []*keeper          // the processes that it counts for
	since   uint64             // Pool.lastPending when it became pending; 0: it is not pending
}

// keeping returns b.kept. The first call makes b.kept. Service.mu is held.
func (b *block) keeping() *keeping {
	if b.kept == nil {
		b.kept = new(keeping)
	}
	return b.kept
}

// charge makes b count for exactly the processes that keep b now. fewer says that there are now fewer such processes. Service.mu is
// held.
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

// count adds n, which may be negative, to the bytes that b's keepers keep, and to the bytes that count for their users. Service.mu is
// held.
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

// Limits of how many blocks recharge looks at in one call, because all sessions wait for Service.mu meanwhile. Up to fewCharged blocks,
// it looks at all in every call. Above that, it looks at up to manyCharged, once in a drainRest.
const (
	fewCharged  = 64
	manyCharged = 1024
)

// recharge updates which processes keep blocks: nothing tells the service when GPU work ends. With more than manyCharged blocks, it looks
// at a random part of them. Service.mu is held.
func (p *Pool) recharge() {
	if len(p.charged) > fewCharged {
		if time.Since(p.recharged) < drainRest {
			return
		}
		p.recharged = time.Now()
	}
	left, fewer := manyCharged, false
	for b := range p.charged { // begins with a random one
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

// watchCharged starts a goroutine that calls recharge every drainRest. It runs while there are blocks that count for a process, and an
// allocation waits for room or has skipped pending blocks since the last call. Service.mu is held.
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

// counts returns how many bytes in p count for the session, and how many of these are free blocks that its process keeps.
// Service.mu is held.
func (s *Session) counts(p *Pool) (bytes, kept uint64) {
	kept = s.keeper.kept[p]
	return s.account(p).bytes + kept, kept
}

// chargeable says whether the session may take size bytes more in p. Service.mu is held.
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

// bounded says whether sessions or users have a limit of their own in the pool.
func (p *Pool) bounded() bool { return p.info.SessionBytes > 0 || p.info.UserBytes > 0 }

// within does the same as chargeable, without a call of recharge. Service.mu is held.
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
