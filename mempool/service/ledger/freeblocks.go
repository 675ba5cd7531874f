package ledger

import (
	"iter"
	"maps"
	"slices"
)

// pending has the free blocks of one size on which work is under way, the oldest first. The removal of a block only reduces the field
// `count`. The block's entries stay in the lists as stale entries. A stale entry is dropped when a search finds it, or when most entries
// are stale. So the time to add, remove or find a block does not grow with the number of blocks, on average.
type pending struct {
	all   []entry
	of    map[*Keeper][]entry // the entries that count for each keeper; only in a pool with limits for sessions or users
	count int                 // how many blocks are pending
}

// entry is the entry of a block that became pending. If the block becomes pending again later, the block gets a new entry.
type entry struct {
	block *Block
	since uint64
}

func (e entry) stale() bool { return e.block.kept.since != e.since }

// of says whether the entry's block still counts for k.
func (e entry) of(k *Keeper) bool { return !e.stale() && slices.Contains(e.block.kept.keepers, k) }

// Pending says whether b is free and work on b was under way at the last check.
func (b *Block) Pending() bool { return b.kept != nil && b.kept.since > 0 }

// makeFree makes a block available that is not in use. The callers have removed the fences that are reached.
func (b *Block) makeFree() {
	b.State = BlockCached
	b.touch()
	b.Pool.Cached += b.Size
	b.Charge()
	if b.Kept() {
		b.setPending()
	} else {
		b.shelve()
	}
}

// setPending adds a free block to the blocks on which work is under way. Before the call, Charge has stored in b.kept.keepers the processes that
// the block counts for.
func (b *Block) setPending() {
	p := b.Pool
	p.lastPending++
	b.kept.since = p.lastPending
	p.enlist(b)
}

// enlist adds a pending block at the end of its lists.
func (p *Pool) enlist(b *Block) {
	l := p.pending[b.Size]
	if l == nil {
		l = new(pending)
		p.pending[b.Size] = l
	}
	e := entry{b, b.kept.since}
	l.all = append(l.all, e)
	l.count++
	if p.Bounded() {
		if l.of == nil {
			l.of = make(map[*Keeper][]entry)
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

// clearPending removes a block from the blocks on which work is under way.
func (b *Block) clearPending() {
	p := b.Pool
	b.kept.since = 0
	l := p.pending[b.Size]
	if l.count--; l.count == 0 {
		delete(p.pending, b.Size)
	}
}

// shelve adds a free block to the blocks on which no work is under way.
func (b *Block) shelve() {
	p := b.Pool
	b.Fences = nil
	p.cache[b.Size] = append(p.cache[b.Size], b)
	if b.Mapped.Len() == 0 {
		p.loose++
	}
}

// LookAgain does the same as Charge, for a free block. If the block is pending and no work on it is under way any more, LookAgain moves it to
// the blocks without work under way.
func (b *Block) LookAgain() (fewer bool) {
	fewer = b.Charge()
	if b.Pending() && !b.Kept() {
		b.touch()
		b.clearPending()
		b.shelve()
	}
	return fewer
}

// Idle finds a free block that has the given size and on which no work is under way. Of several such blocks, it chooses the block that was
// used last, because sessions most likely still map that block, and its bytes are most likely still in a cache of the processor.
func (p *Pool) Idle(size uint64) *Block {
	list := p.cache[size]
	if len(list) == 0 {
		return nil
	}
	return list[len(list)-1]
}

// Sample yields at most 2·`each` pending blocks of a size: the newest and, if there are more, the oldest. The result `more` says whether the
// pool has other pending blocks of this size.
func (p *Pool) Sample(size uint64, each int) (sample iter.Seq[*Block], more bool) {
	l := p.pending[size]
	if l == nil {
		return func(func(*Block) bool) {}, false
	}
	n := len(l.all)
	return func(yield func(*Block) bool) {
		for i := range min(n, 2*each) {
			at := n - 1 - i
			if n > 2*each && i >= each {
				at = i - each
			}
			if e := l.all[at]; !e.stale() && !yield(e.block) {
				return
			}
		}
	}, n > 2*each
}

// Oldest finds the pending block of a size that was used the longest ago, because the work on that block most likely ends first.
func (p *Pool) Oldest(size uint64) *Block {
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

// Own finds the oldest pending block of a size that already counts for the session's process.
func (p *Pool) Own(s *Session, size uint64) *Block {
	l, k := p.pending[size], s.Keeper
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

// Sizes returns the sizes of cached blocks, the smallest first.
func (p *Pool) Sizes() []uint64 {
	sizes := slices.AppendSeq(slices.Collect(maps.Keys(p.cache)), maps.Keys(p.pending))
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

// Reuse takes a free block for a buffer that counts for a: a pending block, or the block that Idle returns.
func (a *Account) Reuse(b *Block) {
	p := b.Pool
	if b.Pending() {
		b.clearPending()
	} else {
		list := p.cache[b.Size]
		p.cache[b.Size] = slices.Delete(list, len(list)-1, len(list))
		if b.Mapped.Len() == 0 {
			p.loose--
		}
	}
	b.State = BlockLeased
	b.touch()
	b.Charge()
	b.Generation++
	p.Cached -= b.Size
	p.Leased += b.Size
	a.add(b.Size)
}

// Choose takes cached blocks until n bytes are chosen, and counts these blocks as held. The caller gives them another state. If `mapped` is
// true, Choose takes only blocks that sessions map, otherwise only blocks that no session maps. If `quiet` is true, it takes no blocks with
// work under way. If `may` is not nil, it takes only blocks for which `may` returns true. It does not read the rest of the blocks after it has
// chosen n bytes, because there may be very many blocks.
func (p *Pool) Choose(chosen *uint64, n uint64, mapped, quiet bool, may func(*Block) bool) (blocks []*Block) {
	take := func(b *Block) {
		blocks = append(blocks, b)
		*chosen += b.Size
		p.Cached -= b.Size
		p.Held += b.Size
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
			if b.Mapped.Len() > 0 != mapped || may != nil && !may(b) {
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
			if *chosen < n && !e.stale() && e.block.Mapped.Len() > 0 == mapped && (may == nil || may(e.block)) {
				e.block.clearPending()
				take(e.block)
			}
		}
	}
	return blocks
}

// TakeStuck returns the blocks that could not be freed, and removes them from the list of these blocks. The caller tries again to free them.
func (p *Pool) TakeStuck() (blocks []*Block) {
	blocks, p.stuck = p.stuck, nil
	return blocks
}

// Free yields the blocks that are free for use.
func (p *Pool) Free() iter.Seq[*Block] {
	return func(yield func(*Block) bool) {
		for _, list := range p.cache {
			for _, b := range list {
				if !yield(b) {
					return
				}
			}
		}
		for _, list := range p.pending {
			for _, e := range list.all {
				if !e.stale() && !yield(e.block) {
					return
				}
			}
		}
	}
}
