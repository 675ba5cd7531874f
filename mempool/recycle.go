package mempool

import (
	"maps"
	"slices"
)

// recycle takes back a block that no buffer uses any more. Service.mu is held.
func (p *Pool) recycle(b *block) {
	p.leased -= b.size
	if len(b.tickets) > maxTickets { // more than its next user could be told
		b.holds++
		p.svc.drain(b, func() { p.unhold(b) })
	}
	if b.holds > 0 {
		b.state = blockHeld
		p.held += b.size
		return
	}
	p.keep(b)
}

// keep makes a free block available. Service.mu is held.
func (p *Pool) keep(b *block) {
	b.state = blockCached
	p.cached += b.size
	p.cache[b.size] = append(p.cache[b.size], b)
	p.room.broadcast()
	p.relief.broadcast()
	if p.closing {
		p.retire(p.cached)
	}
}

// unhold ends one hold on b. Service.mu is held.
func (p *Pool) unhold(b *block) {
	b.holds--
	if b.holds == 0 && b.state == blockHeld {
		p.held -= b.size
		p.keep(b)
	}
}

// evict gives back cached blocks of at least n bytes together, and reports whether any bytes were given back at once.
// Service.mu is held, and released for driver calls.
func (p *Pool) evict(n uint64) bool {
	given, err := p.giveBack(n)
	if err != nil {
		p.svc.log.Error("memory could not be given back", "error", err)
	}
	return given > 0
}

// giveBack is evict that tells how many bytes were given back at once, and what could not be.
func (p *Pool) giveBack(n uint64) (given uint64, err error) {
	idle := p.retire(n)
	err = p.svc.flush()
	for _, b := range idle {
		if b.state == blockFreed {
			given += b.size
		}
	}
	return given, err
}

// retire chooses cached blocks of at least n bytes together to be given back: those that no session maps are due at once
// and returned, the others when their mappings have been given up. Blocks that could not be freed before are tried
// again. Service.mu is held.
func (p *Pool) retire(n uint64) (idle []*block) {
	var chosen uint64
	idle, p.stuck = p.stuck, nil
	for _, b := range idle {
		chosen += b.size
	}
	var recalled []*block
	sizes := slices.Sorted(maps.Keys(p.cache))
	for _, mapped := range []bool{false, true} { // blocks that nobody maps first: they cost no round trip
		for _, size := range sizes {
			p.cache[size] = slices.DeleteFunc(p.cache[size], func(b *block) bool {
				if chosen >= n || b.mapped.len() > 0 != mapped {
					return false
				}
				if mapped {
					b.state = blockRecalling
					recalled = append(recalled, b)
				} else {
					idle = append(idle, b)
				}
				chosen += size
				p.cached -= size
				p.held += size
				return true
			})
		}
	}
	for _, b := range idle {
		p.free(b)
	}
	p.recall(recalled)
	return idle
}

// recall asks the sessions that map the blocks to give up their mappings. Service.mu is held.
func (p *Pool) recall(blocks []*block) {
	bySession := make(map[*Session][]uint64)
	for _, b := range blocks {
		for s := range b.mapped.all() {
			bySession[s] = append(bySession[s], b.id)
		}
	}
	for s, ids := range bySession {
		if s.notify != nil && !s.ended {
			s.notify(Recall{Blocks: ids})
		}
	}
}

// unmap notes that a session no longer maps b. Service.mu is held.
func (p *Pool) unmap(s *Session, b *block) {
	b.mapped.remove(s)
	delete(s.mapped, b.id)
	if b.mapped.len() == 0 && b.state == blockRecalling {
		p.free(b)
	}
}
