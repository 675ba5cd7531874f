package mempool

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Pool is a named, bounded arena on one device, of one kind of memory, for one trust domain. Its fields are guarded by
// Service.mu except those that never change.
type Pool struct {
	svc   *Service
	info  PoolInfo
	arena Arena

	access Access
	// reserved = leased + cached + held: bytes of all blocks, of those that buffers use, of those free for use, and of
	// those that are free but not usable yet (recalled, or of a process that may still run).
	reserved, leased, cached, held uint64
	used                           uint64 // bytes of the buffers
	blocks                         int
	free                           map[uint64][]*block // cached blocks by size, oldest first
	closing                        bool
	closed                         chan struct{} // closed when the arena is
	room                           signal        // blocks became free
}

// PoolInfo is what a client must know about a pool. It is plain data.
type PoolInfo struct {
	// ID is never reused within an epoch.
	ID           uint64
	Name         string
	Kind         Kind
	Device       DeviceInfo
	MaxBytes     uint64
	SessionBytes uint64
}

// Info describes the pool.
func (p *Pool) Info() PoolInfo { return p.info }

// Export is what another process needs to map the pool. Its files stay the pool's.
func (p *Pool) Export() Export { return p.arena.Export() }

// DriverInUse is how many bytes the source of the memory itself says are allocated from the pool: what the pool's
// reserved bytes can be checked against.
func (p *Pool) DriverInUse() (uint64, error) { return p.arena.InUse() }

// take returns a block of at least n bytes for a session's buffer, and charges both. It waits up to wait for room.
func (p *Pool) take(ctx context.Context, s *Session, n uint64, wait time.Duration) (*block, error) {
	size := sizeClass(n, p.arena.Granularity())
	if limit := p.info.MaxBytes; size > limit {
		if size = roundUp(n, p.arena.Granularity()); size > limit {
			return nil, situation(ErrLimit, "%d bytes do not fit into pool %q, which may take %d", n, p.info.Name, limit)
		}
	}
	w := newWaiter(ctx, wait)
	defer w.stop()
	svc := p.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	for {
		if err := s.alive(); err != nil {
			return nil, err
		}
		if p.closing {
			return nil, situation(ErrClosed, "pool %q is being destroyed", p.info.Name)
		}
		if err := s.chargeable(p, size); err != nil {
			if !w.wait(&svc.mu, p.room.next()) {
				return nil, w.cause(err)
			}
			continue
		}
		if b := p.cachedBlock(size); b != nil {
			s.charge(p, b.size)
			return b, nil
		}
		if p.reserved+size <= p.info.MaxBytes {
			return p.grow(s, size)
		}
		if p.evict(p.reserved + size - p.info.MaxBytes) {
			continue
		}
		err := situation(ErrLimit, "no room for %d bytes in pool %q: %d of %d are reserved, %d of them leased and %d held for processes that still map them",
			size, p.info.Name, p.reserved, p.info.MaxBytes, p.leased, p.held)
		if p.held > 0 {
			err = fmt.Errorf("%w (%w)", err, ErrRecalling)
		}
		if !w.wait(&svc.mu, p.room.next()) {
			return nil, w.cause(err)
		}
	}
}

// cachedBlock takes a block of size bytes from the cache, or, where the pool cannot grow, the smallest that is up to
// twice as large. Service.mu is held.
func (p *Pool) cachedBlock(size uint64) *block {
	best := size
	if len(p.free[size]) == 0 {
		if p.reserved+size <= p.info.MaxBytes {
			return nil
		}
		best = 0
		for s, list := range p.free {
			if len(list) > 0 && s >= size && s/2 <= size && (best == 0 || s < best) {
				best = s
			}
		}
		if best == 0 {
			return nil
		}
	}
	list := p.free[best]
	b := list[len(list)-1] // the most recently used: its mappings and caches are warm
	list[len(list)-1] = nil
	p.free[best] = list[:len(list)-1]
	p.cached -= b.size
	p.use(b)
	return b
}

// use makes b a block in use. Service.mu is held.
func (p *Pool) use(b *block) {
	b.state = blockLeased
	b.generation++
	p.leased += b.size
}

// grow makes a new block. Service.mu is held, and released for the driver call.
func (p *Pool) grow(s *Session, size uint64) (*block, error) {
	svc := p.svc
	p.reserved += size
	p.leased += size
	p.blocks++
	s.charge(p, size)
	svc.mu.Unlock()
	mem, err := p.arena.Allocate(size)
	svc.mu.Lock()
	if errors.Is(err, ErrOutOfMemory) && p.evict(p.cached) { // what lies idle here may be what is missing
		svc.mu.Unlock()
		mem, err = p.arena.Allocate(size)
		svc.mu.Lock()
	}
	if err != nil {
		p.reserved -= size
		p.leased -= size
		p.blocks--
		s.discharge(p, size)
		p.room.broadcast()
		p.closeIfEmpty()
		return nil, err
	}
	svc.lastBlock++
	return &block{id: svc.lastBlock, pool: p, size: size, mem: mem, generation: 1, mapped: make(map[*Session]struct{})}, nil
}

// recycle takes back a block that no buffer uses any more. Service.mu is held.
func (p *Pool) recycle(b *block) {
	p.leased -= b.size
	if b.holds > 0 {
		b.state = blockHeld
		p.held += b.size
		return
	}
	p.cache(b)
}

// cache makes a free block available. Service.mu is held.
func (p *Pool) cache(b *block) {
	b.state = blockCached
	p.cached += b.size
	p.free[b.size] = append(p.free[b.size], b)
	p.room.broadcast()
	if p.closing {
		p.evict(p.cached)
	}
}

// unhold ends one hold of an ended session on b, whose process is gone. Service.mu is held.
func (p *Pool) unhold(b *block) {
	b.holds--
	if b.holds == 0 && b.state == blockHeld {
		p.held -= b.size
		p.cache(b)
	}
}

// evict starts giving back cached blocks of at least n bytes together: those that no session maps at once, the others
// when their mappings have been given up. It reports whether bytes were given back at once. Service.mu is held, and
// released for driver calls.
func (p *Pool) evict(n uint64) bool {
	var idle, recalled []*block
	var chosen uint64
	for pass := range 2 { // blocks that nobody maps first: they cost no round trip
		for size, list := range p.free {
			kept := list[:0]
			for _, b := range list {
				switch {
				case chosen >= n || (pass == 0 && len(b.mapped) > 0):
					kept = append(kept, b)
					continue
				case pass == 0:
					b.state = blockFreeing
					idle = append(idle, b)
				default:
					b.state = blockRecalling
					recalled = append(recalled, b)
				}
				chosen += size
				p.cached -= size
				p.held += size
			}
			clear(list[len(kept):])
			p.free[size] = kept
		}
	}
	p.recall(recalled)
	p.freeBlocks(idle)
	return len(idle) > 0
}

// recall asks the sessions that map the blocks to give up their mappings. Service.mu is held.
func (p *Pool) recall(blocks []*block) {
	bySession := make(map[*Session][]uint64)
	for _, b := range blocks {
		for s := range b.mapped {
			bySession[s] = append(bySession[s], b.id)
		}
	}
	for s, ids := range bySession {
		if s.notify != nil {
			s.notify(Recall{Blocks: ids})
		}
	}
}

// unmap notes that a session no longer maps b. Service.mu is held, and released for driver calls.
func (p *Pool) unmap(s *Session, b *block) {
	delete(b.mapped, s)
	delete(s.mapped, b.id)
	if len(b.mapped) == 0 && b.state == blockRecalling {
		b.state = blockFreeing
		p.freeBlocks([]*block{b})
	}
}

// freeBlocks gives blocks in state blockFreeing, counted as held, back to the arena. Service.mu is held, and released
// for the driver calls.
func (p *Pool) freeBlocks(blocks []*block) {
	if len(blocks) == 0 {
		return
	}
	svc := p.svc
	svc.mu.Unlock()
	for _, b := range blocks {
		if err := b.mem.Free(); err != nil {
			svc.log.Error("a block could not be freed", "pool", p.info.Name, "block", b.id, "bytes", b.size, "error", err)
		}
	}
	svc.mu.Lock()
	for _, b := range blocks {
		p.reserved -= b.size
		p.held -= b.size
		p.blocks--
	}
	p.room.broadcast()
	p.closeIfEmpty()
}

// closeIfEmpty closes the arena of a pool that is being destroyed once its last block is gone. Service.mu is held, and
// released for the driver call.
func (p *Pool) closeIfEmpty() {
	if !p.closing || p.blocks > 0 || p.svc.poolByID[p.info.ID] != p {
		return
	}
	delete(p.svc.poolByID, p.info.ID)
	p.svc.mu.Unlock()
	if err := p.arena.Close(); err != nil {
		p.svc.log.Error("a pool could not be closed", "pool", p.info.Name, "error", err)
	}
	close(p.closed)
	p.svc.mu.Lock()
}
