package mempool

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Pool is a named, bounded arena on one device, of one kind of memory, for one trust domain. Its fields are guarded by
// Service.mu except those that never change. What becomes of its blocks is in recycle.go.
type Pool struct {
	svc   *Service
	info  PoolInfo
	arena Arena

	uid    uint32 // of whoever made it
	access Access
	// reserved = leased + cached + held: bytes of all blocks, of those that buffers use, of those free for use, and of
	// those that are free but not usable yet (recalled, or of a process that may still run).
	reserved, leased, cached, held uint64
	used                           uint64 // bytes of the buffers
	blocks                         int
	cache                          map[uint64][]*block // by size, oldest first
	loose                          int                 // cached blocks that no session maps
	stuck                          []*block            // could not be freed; counted as held
	channels                       int
	closing                        bool          // being destroyed
	ending                         bool          // its arena is being closed
	closed                         chan struct{} // closed when the arena is
	room                           room          // for allocations that were refused
	relief                         countedSignal // blocks became free, or were given back to the driver
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

// blockSize is the size of a block for n bytes.
func (p *Pool) blockSize(n uint64) (uint64, error) {
	granularity, limit := p.arena.Granularity(), p.info.MaxBytes
	size := sizeClass(n, granularity)
	if size > limit { // the least that it takes may fit
		size = roundUp(max(n, 1), granularity)
	}
	if size > limit {
		return 0, situation(ErrLimit, "pool %q is too small for %d bytes, which take %d of it: it may take %d; make a pool with a larger max_bytes",
			p.info.Name, n, size, limit)
	}
	return size, nil
}

// take takes a block of at least n bytes for a session's buffer, and charges it to both. Service.mu is held, and
// released for waiting and for driver calls.
func (p *Pool) take(w *waiter, n uint64) (*block, error) {
	s := w.session
	size, err := p.blockSize(n)
	if err != nil {
		return nil, err
	}
	var line *place
	leave := func() {
		if line != nil {
			line.leave()
			line = nil
		}
	}
	defer leave()
	for {
		room, relief := p.room.changes, p.relief.count // before the lock is released for the first time
		if err := s.alive(); err != nil {
			return nil, err
		}
		if p.closing {
			return nil, p.ended()
		}
		err := s.chargeable(p, size)
		mine := err != nil || p.info.SessionBytes > 0 // others may find more
		cached := p.fits(s, size)
		switch {
		case err != nil:
		case cached != 0:
			return p.cachedBlock(s, cached), nil
		case p.reserved+size <= p.info.MaxBytes:
			var b *block
			if b, err = p.grow(w.ctx, s, size); !errors.Is(err, ErrOutOfMemory) {
				return b, err
			}
			leave()
			if !w.wait(p.relief.after(relief)) {
				return nil, w.cause(err)
			}
			continue
		case p.evict(p.reserved + size - p.info.MaxBytes):
			continue
		}
		if w.patient() {
			if line == nil {
				line = p.room.join(size)
			}
			if w.wait(line.wait(room, mine)) {
				continue
			}
		}
		if err == nil {
			err = p.full(size) // said only now: most who wait get what they wait for
		}
		return nil, w.cause(err)
	}
}

func (p *Pool) ended() error { return situation(ErrClosed, "pool %q is being destroyed", p.info.Name) }

// full says why there is no room for size bytes.
func (p *Pool) full(size uint64) error {
	err := situation(ErrLimit, "no room for %d bytes in pool %q: %d of %d are reserved, %d of them leased and %d held for processes that still map them",
		size, p.info.Name, p.reserved, p.info.MaxBytes, p.leased, p.held)
	if p.held > 0 {
		err = fmt.Errorf("%w (%w)", err, ErrRecalling)
	}
	return err
}

// fits is the size of the cached blocks to take where size bytes are asked for: just as many or, where the pool cannot
// grow, the next up to twice as many, if the session may have them; 0 if there is none. Service.mu is held.
func (p *Pool) fits(s *Session, size uint64) uint64 {
	if len(p.cache[size]) > 0 {
		return size
	}
	best := uint64(0)
	if p.reserved+size > p.info.MaxBytes {
		for have, list := range p.cache {
			if len(list) > 0 && have > size && have/2 <= size && (best == 0 || have < best) && s.chargeable(p, have) == nil {
				best = have
			}
		}
	}
	return best
}

// cachedBlock takes a block of size bytes from the cache, which has one. Service.mu is held.
func (p *Pool) cachedBlock(s *Session, size uint64) *block {
	list := p.cache[size]
	i := pick(list)
	b := list[i]
	p.cache[size] = slices.Delete(list, i, i+1)
	b.state = blockLeased
	if b.mapped.len() == 0 {
		p.loose--
	}
	b.generation++
	p.cached -= size
	p.leased += size
	s.account(p).bytes += size
	return b
}

// pick chooses a block to use: the most recently used, whose mappings and caches are warm, of those on which nothing is
// under way; if it is on all, the one that was used the longest ago, so that its next user waits the least.
func pick(list []*block) int {
	const look = 16
	for i := len(list) - 1; i >= max(0, len(list)-look); i-- {
		if list[i].quiet() {
			return i
		}
	}
	return 0
}

// grow makes a new block. Service.mu is held, and released for driver calls.
func (p *Pool) grow(ctx context.Context, s *Session, size uint64) (*block, error) {
	svc := p.svc
	p.reserved += size
	p.leased += size
	p.blocks++
	account := s.account(p)
	account.bytes += size
	mem, err := p.allocate(ctx, size)
	if errors.Is(err, ErrOutOfMemory) && p.evict(p.cached) { // what lies idle here may be what is missing
		mem, err = p.allocate(ctx, size)
	}
	if err != nil {
		p.reserved -= size
		p.leased -= size
		p.blocks--
		account.bytes -= size
		p.room.broadcast() // and no relief: those who ran out of memory would drive each other
		p.closeIfEmpty()
		if errors.Is(err, ErrOutOfMemory) && p.held > 0 {
			err = fmt.Errorf("%w (%w)", err, ErrRecalling)
		}
		return nil, err
	}
	svc.lastBlock++
	b := &block{id: svc.lastBlock, pool: p, size: size, mem: mem, generation: 1}
	if err = s.alive(); err == nil && p.closing {
		err = p.ended()
	}
	if err != nil { // while the block was made
		account.bytes -= size
		p.recycle(b)
		return nil, err
	}
	return b, nil
}

// allocate calls the driver. Service.mu is held, and released meanwhile.
func (p *Pool) allocate(ctx context.Context, size uint64) (Allocation, error) {
	p.svc.mu.Unlock()
	defer p.svc.mu.Lock()
	return p.arena.Allocate(ctx, size)
}
