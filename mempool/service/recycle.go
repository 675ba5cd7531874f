package service

import (
	"maps"
	"slices"

	"github.com/poolbridge/poolbridge/mempool"
)

// recycle takes back a block that no buffer uses any more. The caller holds Service.mu.
func (p *Pool) recycle(b *block) {
	p.leased -= b.size
	if len(b.fences) > maxFences { // more fences than the service can send to the block's next user
		b.holds++
		p.svc.drain(b, func() { p.unhold(b) })
	}
	if b.holds > 0 {
		b.state = blockHeld
		p.held += b.size
		p.charge(b)
		return
	}
	p.keep(b)
}

// keep makes a free block available. The caller holds Service.mu.
func (p *Pool) keep(b *block) {
	b.state = blockCached
	p.cached += b.size
	p.charge(b)
	if b.kept != nil && len(b.kept.keepers) > 0 {
		p.pend(b)
	} else {
		p.shelve(b)
	}
	p.waiters.broadcast()
	p.relief.broadcast()
	if p.closing {
		p.retire(p.cached, false)
	}
}

// unhold ends one hold on b. The caller holds Service.mu.
func (p *Pool) unhold(b *block) {
	b.holds--
	if b.state != blockHeld {
		return
	}
	if b.holds > 0 {
		p.charge(b)
		return
	}
	p.held -= b.size
	p.keep(b)
}

// evict frees cached blocks that together have at least n bytes. It does not free blocks on which work is under way. The result says
// whether any bytes were freed before evict returns. The caller holds Service.mu; evict releases the mutex for driver calls.
func (p *Pool) evict(n uint64) bool {
	if p.cached == 0 && len(p.stuck) == 0 {
		return false
	}
	given, err := p.freeCached(n, true)
	if err != nil {
		p.svc.note(mempool.HistoryEvent{Kind: mempool.DriverError, Text: notGivenBack(err)}, p)
	}
	return given > 0
}

// freeCached frees cached blocks that together have at least n bytes. The result `given` is how many bytes were freed before freeCached
// returns; `err` is the error of blocks that the driver failed to free. If `quiet` is true, freeCached does not free blocks with work under
// way. The caller holds Service.mu; freeCached releases the mutex for driver calls.
func (p *Pool) freeCached(n uint64, quiet bool) (given uint64, err error) {
	idle := p.retire(n, quiet)
	err = p.svc.flush()
	for _, b := range idle {
		if b.state == blockFreed {
			given += b.size
		}
	}
	return given, err
}

// retire chooses cached blocks that are to be freed and that together have at least n bytes. It adds the chosen blocks that no session maps
// to the reclaim queue, and returns them. It recalls the chosen blocks that sessions map: these blocks come into the queue when the
// sessions have unmapped them. It also adds to the queue, and returns, the blocks that the driver failed to free before. If `quiet` is
// true, retire does not choose blocks with work under way. The caller holds Service.mu.
func (p *Pool) retire(n uint64, quiet bool) (idle []*block) {
	var chosen uint64
	idle, p.stuck = p.stuck, nil
	if quiet { // the caller needs room: the stuck blocks may be enough
		for _, b := range idle {
			chosen += b.size
		}
	}
	idle = append(idle, p.choose(&chosen, n, false, quiet)...) // unmapped blocks first: no session must answer a recall
	recalled := p.choose(&chosen, n, true, quiet)
	for _, b := range recalled {
		b.state = blockRecalling
		p.charge(b)
	}
	for _, b := range idle {
		p.free(b)
	}
	p.recall(recalled)
	return idle
}

// choose takes cached blocks until n bytes are chosen, and counts these blocks as held. If `mapped` is true, choose takes only blocks that
// sessions map, otherwise only blocks that no session maps. It does not read the rest of the blocks after it has chosen n bytes, because
// there may be very many blocks. The caller holds Service.mu.
func (p *Pool) choose(chosen *uint64, n uint64, mapped, quiet bool) (blocks []*block) {
	take := func(b *block) {
		blocks = append(blocks, b)
		*chosen += b.size
		p.cached -= b.size
		p.held += b.size
	}
	enough := func() bool { return *chosen >= n || (!mapped && p.loose == 0) }
	for _, size := range slices.Sorted(maps.Keys(p.cache)) {
		if enough() {
			break
		}
		list := p.cache[size]
		left, i := list[:0], 0
		for ; i < len(list) && !enough(); i++ {
			b := list[i]
			if b.mapped.len() > 0 != mapped {
				left = append(left, b)
				continue
			}
			if !mapped {
				p.loose--
			}
			take(b)
		}
		left = append(left, list[i:]...)
		clear(list[len(left):])
		if p.cache[size] = left; len(left) == 0 {
			delete(p.cache, size)
		}
	}
	if quiet {
		return blocks
	}
	for _, size := range slices.Sorted(maps.Keys(p.pending)) {
		for _, e := range p.pending[size].all {
			if *chosen < n && !e.stale() && e.block.mapped.len() > 0 == mapped {
				p.unpend(e.block)
				take(e.block)
			}
		}
	}
	return blocks
}

// recall asks the sessions that map the blocks to give up their mappings. The caller holds Service.mu.
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

// unmap notes that a session no longer maps b. The caller holds Service.mu.
func (p *Pool) unmap(s *Session, b *block) {
	b.mapped.remove(s)
	remove(&s.mapped, &s.most.mapped, b.id)
	if b.mapped.len() > 0 {
		if b.state == blockRecalling && p.charge(b) {
			p.waiters.broadcast()
		}
		return
	}
	switch b.state {
	case blockRecalling:
		p.free(b)
	case blockCached:
		if !b.pending() {
			p.loose++
		}
	}
}
