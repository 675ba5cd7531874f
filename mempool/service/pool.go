package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/internal/sizeclass"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/journal"
)

// Pool is memory of one kind on one device. The users and groups of the pool's access list share this memory. A pool has a name and a size
// limit. Service.mu guards the fields that can change. The file recycle.go handles blocks that no buffer uses any more.
type Pool struct {
	svc   *Service
	info  mempool.PoolInfo
	arena mempool.Arena

	uid    uint32          // the user who made the pool
	access *mempool.Access // the users and groups that may use the pool, sorted; never empty
	// reserved = leased + cached + held, in bytes of blocks. reserved counts all blocks. leased counts the blocks that buffers use, and
	// cached counts the blocks that are free for use. held counts the blocks that no buffer uses but that cannot be used yet: they are about
	// to be freed, or the process of an ended session keeps them.
	reserved, leased, cached, held uint64
	used                           uint64 // bytes of the buffers
	blocks                         int
	has                            struct{ leases, buffers, names int }
	cache                          map[uint64][]*block // cached blocks without work under way, by size, oldest first
	loose                          int                 // how many blocks in cache no session maps
	pending                        map[uint64]*pending // cached blocks with work under way, by size
	lastPending                    uint64              // how many blocks became pending so far
	stuck                          []*block            // could not be freed; counted as held
	queued                         uint64              // how many blocks were queued to be freed so far
	returned                       countedSignal       // a queued block was freed, or could not be freed
	users                          tally               // bytes that count for each user: see account.go
	charged                        map[*block]struct{} // free blocks that count for a process
	recharged                      time.Time           // when recharge last checked more than fewCharged of these blocks
	watched                        bool                // the goroutine of watchCharged runs
	passed                         bool                // an allocation has skipped pending blocks since watchCharged last checked
	channels                       int
	closing                        bool          // the pool is being destroyed
	ending                         bool          // the pool's arena is being closed
	closed                         chan struct{} // closed when the arena is closed
	waiters                        waiters       // allocations that wait for room
	relief                         countedSignal // blocks became free, or were freed
	refused, failed                journal.Gap   // refused: allocations that found no room; failed: allocations that the driver refused

	lent      map[uint64]*block // blocks that buffers use, by id; nil until the pool has a channel
	producers map[*Session]int  // how many producers in channels the sessions have
	wanting   map[*Session]int  // how many allocations of each session have found no room
	asked     time.Time         // when ask last sent Wanted
	tidied    time.Time         // when want last called tidy
	asking    bool              // wantOn runs
}

// Info describes the pool.
func (p *Pool) Info() mempool.PoolInfo { return p.info }

// accessOf returns the access list of a pool that the peer `maker` makes. The list is a sorted copy of the argument `a`, without duplicate
// ids. If `a` is empty, only the user of `maker` gets access.
func accessOf(a mempool.Access, maker mempool.Peer) mempool.Access {
	a = mempool.Access{UIDs: slices.Compact(slices.Sorted(slices.Values(a.UIDs))), GIDs: slices.Compact(slices.Sorted(slices.Values(a.GIDs)))}
	if len(a.UIDs) == 0 && len(a.GIDs) == 0 {
		a.UIDs = []uint32{maker.UID}
	}
	return a
}

// alike returns nil if the pool has the same settings and the same access list as a pool that `peer` would make with `spec`.
//
// Errors: [mempool.ErrExists], whose text says what differs; [mempool.ErrUnavailable] and [mempool.ErrInvalid] if there is no such device.
func (p *Pool) alike(peer mempool.Peer, spec mempool.PoolSpec) error {
	access, info := accessOf(spec.Access, peer), p.info
	switch {
	case info.Kind != spec.Kind:
		spec.Device = info.Device.UUID // do not report the device too
	case info.Device != mempool.NoDevice: // a GPU has several names
		uuid, err := mempool.DeviceUUID(spec.Device)
		if err != nil {
			return err
		}
		spec.Device = uuid
	}
	var differs []string
	for _, f := range []struct {
		name       string
		have, want any
	}{
		{"kind", info.Kind, spec.Kind},
		{"device", info.Device.UUID, spec.Device},
		{"max_bytes", info.MaxBytes, spec.MaxBytes},
		{"session_bytes", info.SessionBytes, spec.SessionBytes},
		{"user_bytes", info.UserBytes, spec.UserBytes},
		{"uids", p.access.UIDs, access.UIDs},
		{"gids", p.access.GIDs, access.GIDs},
	} {
		if have, want := fmt.Sprintf("%v", f.have), fmt.Sprintf("%v", f.want); have != want {
			differs = append(differs, fmt.Sprintf("its %s is %s, not %s", f.name, cmp.Or(have, "none"), cmp.Or(want, "none")))
		}
	}
	if differs != nil {
		return situation.Of(mempool.ErrExists, "there is a pool %q already, which differs from what was asked for: %s; open it as it is, or choose another name",
			info.Name, strings.Join(differs, "; "))
	}
	return nil
}

// Export returns what another process needs to map the pool. The service closes the files of the export.
func (p *Pool) Export() mempool.Export { return p.arena.Export() }

// DriverInUse returns how many bytes of the pool are allocated, according to the driver or the system. Tests compare this number with
// the pool's reserved bytes.
func (p *Pool) DriverInUse() (uint64, error) { return p.arena.InUse() }

// blockSize returns the size of the block that a buffer of n bytes needs.
func (p *Pool) blockSize(n uint64) (uint64, error) {
	granularity, limit := p.arena.Granularity(), p.info.MaxBytes
	size := sizeclass.Of(n, granularity)
	if size > limit { // n without rounding to a size class may fit
		size = sizeclass.RoundUp(max(n, 1), granularity)
	}
	if size > limit {
		return 0, situation.Of(mempool.ErrLimit, "pool %q is too small for %s, which need a block of %s: its max_bytes is %s; make a pool with a larger max_bytes",
			p.info.Name, bytesize.Text(n), bytesize.Text(size), bytesize.Text(limit))
	}
	return size, nil
}

// take finds a block of at least n bytes for a session's buffer, and counts the block for the session and its user. take prefers a free
// block without work under way. If there is none, take makes a new block. If the pool has no room for a new block, take uses a free block
// on which work is under way. The caller holds Service.mu; take releases the mutex for waits and driver calls. After the waiter's time
// limit, take still waits for blocks that are being freed at that moment.
func (p *Pool) take(w *waiter, n uint64) (*block, error) {
	s := w.session
	size, err := p.blockSize(n)
	if err != nil {
		return nil, &refusal{err, p, n}
	}
	late := uint64(0) // the value of p.queued at the time limit: freeing much memory takes a while
	awaits := func() bool {
		if !w.late {
			return false
		}
		if p.freeing() && w.relax() {
			return true
		}
		late = cmp.Or(late, p.queued)
		return p.returned.count < late && w.outlast(p.returned.next())
	}
	var line *place
	leave := func() {
		if line != nil {
			line.leave()
			line = nil
		}
	}
	defer leave()
	asked, told := false, false // asked: this allocation counts as one that finds no room; told: sessions with producers got Wanted
	hopeful := func(err error) error {
		if told && !w.patient() {
			return fmt.Errorf("%w (%w)", err, mempool.ErrWanted)
		}
		return err
	}
	defer func() {
		if asked {
			p.wantFor(s, -1)
		}
	}()
	var scarce error // why no new block could be made just now, although the pool has room
	relieved := uint64(0)
	for {
		room := p.waiters.changes // read before the lock is released for the first time
		if scarce == nil {
			relieved = p.relief.count
		}
		if err := s.alive(); err != nil {
			return nil, err
		}
		if p.closing {
			return nil, p.ended()
		}
		err := s.chargeable(p, size)
		mine := err != nil || p.bounded() // other allocations may succeed although this one fails
		full := scarce != nil || p.reserved+size > p.info.MaxBytes
		if err != nil {
			if b := p.own(s, size); b != nil {
				return p.reuse(s, b), nil
			}
		} else {
			if b := p.fits(s, size, full, p.idle); b != nil {
				return p.reuse(s, b), nil
			}
			if !full {
				var b *block
				if b, scarce = p.grow(w.ctx, s, size); !errors.Is(scarce, mempool.ErrOutOfMemory) {
					return b, scarce
				}
				continue
			}
			if scarce == nil && p.evict(p.reserved+size-p.info.MaxBytes) {
				continue
			}
			if b := p.fits(s, size, full, p.any); b != nil && s.alive() == nil {
				return p.reuse(s, b), nil
			}
		}
		if !asked {
			asked = true
			p.wantFor(s, +1)
			var more bool
			if more, told = p.want(); more {
				continue
			}
		}
		if scarce != nil {
			leave()
			w.hurry(!p.freeing())
			if !w.wait(p.relief.after(relieved)) && !awaits() {
				return nil, w.cause(hopeful(scarce))
			}
			scarce = nil
			continue
		}
		if w.patient() {
			if line == nil {
				line = p.waiters.join(size)
				w.long = func(waited time.Duration) {
					s.notePoolFull(p, size, fmt.Sprintf("and has waited %v for it", waited))
				}
			}
			w.hurry(!p.freeing() && !errors.Is(err, mempool.ErrRecalling))
			p.watchCharged() // nothing tells the service when GPU work ends
			if w.wait(line.wait(room, mine)) || awaits() {
				continue
			}
		}
		if err == nil {
			err = p.full(size) // made only now: most waits succeed
		}
		return nil, w.cause(hopeful(&refusal{err, p, size}))
	}
}

// freeing reports whether the pool has blocks that are about to be freed. Blocks that the driver failed to free do not count. The caller
// holds Service.mu.
func (p *Pool) freeing() bool {
	n := p.held
	for _, b := range p.stuck {
		n -= b.size
	}
	return n > 0
}

func (p *Pool) ended() error {
	return situation.Of(mempool.ErrClosed, "pool %q is being destroyed", p.info.Name)
}

// full returns the error that says why the pool has no room for size bytes.
func (p *Pool) full(size uint64) error {
	err := situation.Of(mempool.ErrLimit, "no room for %s in pool %q: %s of %s are reserved, of which %s are leased and %s are free but still "+
		"mapped or being given back; release some, wait longer, or make a pool with a larger max_bytes", bytesize.Text(size), p.info.Name, bytesize.Text(p.reserved),
		bytesize.Text(p.info.MaxBytes), bytesize.Text(p.leased), bytesize.Text(p.held))
	if p.held > 0 {
		err = fmt.Errorf("%w (%w)", err, mempool.ErrRecalling)
	}
	return err
}

// fits finds a cached block for `size` bytes. The argument `find` is a function that returns a block of a given size. fits first calls
// `find` with `size`. If `find` returns nil and `full` is true (the pool cannot grow), fits calls `find` with larger sizes: up to about
// 2·`size`, and only sizes that the session's limits allow. The caller holds Service.mu.
func (p *Pool) fits(s *Session, size uint64, full bool, find func(size uint64) *block) *block {
	if b := find(size); b != nil || !full {
		return b
	}
	for _, have := range p.sizes() {
		if have > size && have/2 <= size && s.chargeable(p, have) == nil {
			if b := find(have); b != nil {
				return b
			}
		}
	}
	return nil
}

// any finds a free block of the given size. It returns a block on which work is under way only if there is no other free block of this
// size. The caller holds Service.mu.
func (p *Pool) any(size uint64) *block {
	if b := p.idle(size); b != nil {
		return b
	}
	return p.oldest(size)
}

// sizes returns the sizes of cached blocks, the smallest first. The caller holds Service.mu.
func (p *Pool) sizes() []uint64 {
	sizes := slices.AppendSeq(slices.Collect(maps.Keys(p.cache)), maps.Keys(p.pending))
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

// reuse takes a block from the cache. The caller holds Service.mu.
func (p *Pool) reuse(s *Session, b *block) *block {
	if b.pending() {
		p.unpend(b)
	} else {
		list := p.cache[b.size]
		p.cache[b.size] = slices.Delete(list, len(list)-1, len(list)) // idle returns the last block of the list
		if b.mapped.len() == 0 {
			p.loose--
		}
	}
	b.state = blockLeased
	p.charge(b)
	b.generation++
	p.cached -= b.size
	p.leased += b.size
	s.account(p).add(b.size)
	return b
}

// grow makes a new block. The caller holds Service.mu; grow releases the mutex for driver calls.
func (p *Pool) grow(ctx context.Context, s *Session, size uint64) (*block, error) {
	svc := p.svc
	p.reserved += size
	p.leased += size
	p.blocks++
	account := s.account(p)
	account.add(size)
	mem, err := p.allocate(ctx, size)
	if errors.Is(err, mempool.ErrOutOfMemory) && p.evict(p.cached) { // the pool's free blocks may use the memory that the driver lacks
		mem, err = p.allocate(ctx, size)
	}
	if err != nil {
		s.noteFailed(p, size, err)
		p.reserved -= size
		p.leased -= size
		p.blocks--
		account.remove(size)
		p.waiters.broadcast() // but not p.relief: allocations that ran out of memory would wake each other without end
		p.closeIfEmpty()
		if errors.Is(err, mempool.ErrOutOfMemory) && p.held > 0 {
			err = fmt.Errorf("%w (%w)", err, mempool.ErrRecalling)
		}
		return nil, err
	}
	svc.lastBlock++
	b := &block{id: svc.lastBlock, pool: p, size: size, mem: mem, generation: 1}
	if err = s.alive(); err == nil && p.closing {
		err = p.ended()
	}
	if err != nil { // the session or the pool ended while the block was made
		account.remove(size)
		p.recycle(b)
		return nil, err
	}
	return b, nil
}

// allocate calls the driver, which allocates the memory of a new block. The caller holds Service.mu; allocate releases the mutex during the
// driver call.
func (p *Pool) allocate(ctx context.Context, size uint64) (mempool.Allocation, error) {
	p.svc.mu.Unlock()
	defer p.svc.mu.Lock()
	mem, err := p.arena.Allocate(ctx, size)
	return mem, p.svc.journal.Called(journal.AllocateBlock, err)
}
