package service

import (
	"time"

	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// This file finds out when processes stop to keep free blocks. The ledger counts the bytes of these blocks.

// recharge checks again which processes keep the free blocks that count for processes. It must check the blocks, because a GPU does not
// tell the service when its work on a block is done. If more than manyCharged blocks count, recharge checks a random part of them. The
// caller holds Service.mu.
func (p *Pool) recharge() {
	if p.rec.Charged() > fewCharged {
		if time.Since(p.recharged) < drainRest {
			return
		}
		p.recharged = time.Now()
	}
	left, fewer := manyCharged, false
	for b := range p.rec.AllCharged() { // the order of the blocks is random
		if left--; left < 0 {
			break
		}
		if p.lookAgain(b) {
			fewer = true
		}
	}
	if fewer {
		p.room.broadcast()
	}
}

// watchCharged starts a goroutine that calls recharge again and again, with a pause of drainRest before each call. After each call, the
// goroutine goes on only if some blocks count for a process, and if an allocation waits for room or has skipped pending blocks (free blocks
// on which work is under way) since the previous call of recharge. The caller holds Service.mu.
func (p *Pool) watchCharged() {
	if p.watched || p.rec.Charged() == 0 {
		return
	}
	p.watched = true
	p.svc.drains.Go(func() {
		for again := true; again; {
			time.Sleep(drainRest)
			p.svc.mu.Lock()
			p.recharge()
			again = p.rec.Charged() > 0 && (len(p.room.lines) > 0 || p.passed)
			p.watched, p.passed = again, false
			p.svc.mu.Unlock()
		}
	})
}

// chargeable returns an error if the session may not take size more bytes in the pool. The caller holds Service.mu.
func (p *Pool) chargeable(s *ledger.Session, size uint64) error {
	if !p.rec.Bounded() {
		return nil
	}
	err := s.Within(p.rec, size)
	if err != nil && p.rec.Charged() > 0 {
		p.recharge()
		err = s.Within(p.rec, size)
	}
	return err
}

// lookAgain finds out again which processes the free block b counts for. The result `fewer` is true if b counts for fewer processes than
// before. If b is pending and no work on b is under way any more, lookAgain moves b to the blocks without work under way. The caller holds
// Service.mu.
func (p *Pool) lookAgain(b *ledger.Block) (fewer bool) {
	before := len(b.Fences)
	if !p.svc.timelines.Quiet(b) && b.Pending() && len(b.Fences) == before {
		return false // the usual case
	}
	return b.LookAgain()
}
