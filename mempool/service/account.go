package service

import (
	"fmt"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// This file is what counts against the bounds of a pool for one session and for one user. A block counts
//
//   - while a buffer uses it: for the session that allocated the buffer, and for its user;
//   - while no buffer uses it, and somebody keeps others from having it: for the process that does so, and for its user. A
//     process does so after a session of it ended without having released a lease on the block, until the process is gone;
//     while work of it on the block is under way; and while it was asked to unmap the block and has not.

// account is how many bytes the blocks of a session's buffers have in a pool. Buffers keep it when the session ends.
type account struct {
	pool    *Pool
	session uint64
	uid     uint32
	bytes   uint64
}

// add counts a block of size bytes, and remove does so no more. Service.mu is held.
func (a *account) add(size uint64) {
	a.bytes += size
	a.pool.users.add(a.uid, int(size))
}

func (a *account) remove(size uint64) {
	a.bytes -= size
	a.pool.users.add(a.uid, -int(size))
}

// keeper is a process of a user, which may keep free blocks from others. It is guarded by Service.mu.
type keeper struct {
	uid      uint32
	process  uint64           // 0: not known, and the keeper is one session's alone
	sessions int              // that are its own, and still hold something
	kept     map[*Pool]uint64 // bytes
}

type keeperKey struct {
	process uint64
	uid     uint32
}

// keeper is the process behind a session that begins. s.mu is held.
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

// keeping is who keeps others from having a block that no buffer uses. It is guarded by Service.mu.
type keeping struct {
	left    smallSet[*Session] // ended sessions that had a lease on it, while their process may still touch it
	keepers []*keeper          // for whom it counts
	since   uint64             // when it became pending, as Pool.lastPending counts; 0: it is not
}

// keeping is made when it is first needed. Service.mu is held.
func (b *block) keeping() *keeping {
	if b.kept == nil {
		b.kept = new(keeping)
	}
	return b.kept
}

// charge makes b count for those who keep others from having it now, and for nobody else, and says whether they became fewer.
// Service.mu is held.
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

// count adds n bytes to what b's keepers keep, and to what counts for their users. Service.mu is held.
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

// How many blocks one look is for: recharge looks at a few whenever it is asked, and at many once in a drainRest. All sessions
// wait meanwhile.
const (
	fewCharged  = 64
	manyCharged = 1024
)

// recharge looks again at who keeps blocks: work ends without a word. Where there are very many, it looks at some of them, and
// the next time at others. Service.mu is held.
func (p *Pool) recharge() {
	if len(p.charged) > fewCharged {
		if time.Since(p.recharged) < drainRest {
			return
		}
		p.recharged = time.Now()
	}
	left, fewer := manyCharged, false
	for b := range p.charged { // from another one on each time
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

// watchCharged has the blocks that count for somebody looked at again and again, for all who wait for room or look for a block,
// while there is such a block and somebody waits or has passed by some since the last look. Service.mu is held.
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

// counts is how many bytes in p count for the session, and how many of them its process only keeps from others.
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

// within is chargeable as far as is known. Service.mu is held.
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
		err = fmt.Errorf("%w; %s of what it has are free blocks that its process keeps from others until its work on them is done and its "+
			"mappings are gone (%w)", err, bytesize.Text(kept), mempool.ErrRecalling)
	}
	return err
}
