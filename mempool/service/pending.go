package service

import "slices"

// pending has the free blocks of one size on which work is under way, the oldest first. The removal of a block only reduces the field
// `count`. The block's entries stay in the lists as stale entries. A stale entry is dropped when a search finds it, or when most entries
// are stale. So the time to add, remove or find a block does not grow with the number of blocks, on average. Service.mu guards pending.
type pending struct {
	all   []entry
	of    map[*keeper][]entry // the entries that count for each keeper; only in a pool with limits for sessions or users
	count int                 // how many blocks are pending
}

// entry is the entry of a block that became pending. If the block becomes pending again later, the block gets a new entry.
type entry struct {
	block *block
	since uint64
}

func (e entry) stale() bool { return e.block.kept.since != e.since }

// of says whether the entry's block still counts for k.
func (e entry) of(k *keeper) bool { return !e.stale() && slices.Contains(e.block.kept.keepers, k) }

// pending says whether b is free and work on b was under way at the last check. The caller holds Service.mu.
func (b *block) pending() bool { return b.kept != nil && b.kept.since > 0 }

// pend adds a free block to the blocks on which work is under way. Before the call, the method charge has stored in b.kept.keepers the
// processes that the block counts for. The caller holds Service.mu.
func (p *Pool) pend(b *block) {
	l := p.pending[b.size]
	if l == nil {
		l = new(pending)
		p.pending[b.size] = l
	}
	p.lastPending++
	b.kept.since = p.lastPending
	e := entry{b, b.kept.since}
	l.all = append(l.all, e)
	l.count++
	if p.bounded() {
		if l.of == nil {
			l.of = make(map[*keeper][]entry)
		}
		for _, k := range b.kept.keepers {
			l.of[k] = append(l.of[k], e)
		}
	}
	if len(l.all) > 2*l.count+64 {
		l.tidy()
	}
}

// tidy drops the stale entries.
func (l *pending) tidy() {
	l.all = slices.DeleteFunc(l.all, entry.stale)
	for k, list := range l.of {
		list = slices.DeleteFunc(list, func(e entry) bool { return !e.of(k) })
		if l.of[k] = list; len(list) == 0 {
			delete(l.of, k)
		}
	}
}

// unpend removes a block from the blocks on which work is under way. The caller holds Service.mu.
func (p *Pool) unpend(b *block) {
	b.kept.since = 0
	l := p.pending[b.size]
	if l.count--; l.count == 0 {
		delete(p.pending, b.size)
	}
}

// shelve adds a free block to the blocks on which no work is under way. The caller holds Service.mu.
func (p *Pool) shelve(b *block) {
	b.fences = nil
	p.cache[b.size] = append(p.cache[b.size], b)
	if b.mapped.len() == 0 {
		p.loose++
	}
}

// lookAgain updates b.kept.keepers, the processes that the free block b counts for. The result `fewer` is true if b counts for fewer
// processes than before. If b is pending and no work on b is under way any more, lookAgain moves b to the blocks without work under way.
// The caller holds Service.mu.
func (p *Pool) lookAgain(b *block) (fewer bool) {
	fences := len(b.fences)
	if b.pending() && !b.quiet() && len(b.fences) == fences {
		return false // the usual case, without a call of charge
	}
	fewer = p.charge(b)
	if b.pending() && len(b.kept.keepers) == 0 {
		p.unpend(b)
		p.shelve(b)
	}
	return fewer
}

// idle finds a free block that has the given size and on which no work is under way. Of several such blocks, it chooses the block that was
// used last, because sessions most likely still map that block, and its bytes are most likely still in a cache of the processor. The caller
// holds Service.mu.
func (p *Pool) idle(size uint64) *block {
	if len(p.cache[size]) == 0 {
		p.lookAtSome(size)
	}
	list := p.cache[size]
	if len(list) == 0 {
		return nil
	}
	return list[len(list)-1]
}

// lookAtSome checks a few of the newest and of the oldest pending blocks of a size. It stops at the first block whose work has ended, and
// calls lookAgain for that block. It does not check the other blocks, because all sessions must wait for Service.mu during the check:
// watchCharged checks them later. The caller holds Service.mu.
func (p *Pool) lookAtSome(size uint64) {
	const each = 16
	l := p.pending[size]
	if l == nil {
		return
	}
	n := len(l.all)
	for i := range min(n, 2*each) {
		at := n - 1 - i
		if n > 2*each && i >= each {
			at = i - each
		}
		if e := l.all[at]; !e.stale() && e.block.quiet() {
			p.lookAgain(e.block)
			return
		}
	}
	if n > 2*each {
		p.passed = true
		p.watchCharged()
	}
}

// oldest finds the pending block of a size that was used the longest ago, because the work on that block most likely ends first.
// The caller holds Service.mu.
func (p *Pool) oldest(size uint64) *block {
	l := p.pending[size]
	if l == nil {
		return nil
	}
	for l.all[0].stale() {
		l.all[0] = entry{}
		l.all = l.all[1:]
	}
	return l.all[0].block
}

// own finds the oldest pending block of a size that already counts for the session's process. The caller holds Service.mu.
func (p *Pool) own(s *Session, size uint64) *block {
	l, k := p.pending[size], s.keeper
	if l == nil {
		return nil
	}
	list := l.of[k]
	for len(list) > 0 && !list[0].of(k) {
		list[0] = entry{}
		list = list[1:]
	}
	if len(list) == 0 {
		delete(l.of, k)
		return nil
	}
	l.of[k] = list
	return list[0].block
}
