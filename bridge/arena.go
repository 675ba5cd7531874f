package bridge

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Arena is memory of a pool that a program divides by itself: [Arena.Allocate] asks the service for nothing as long as the arena's blocks have
// room. What the program wrote into a [Part] can be published under a name or as a frame, without a copy: see [Part.Lease]. Programs that map
// one part can read the whole block of the arena. Several goroutines may call the methods.
type Arena struct {
	pool  *Pool
	bytes uint64

	mu     sync.Mutex
	blocks []*arenaBlock // the first one stays
	closed bool

	giving atomic.Bool // the goroutine of giveBack runs
}

// partAlign is the number of bytes of which the offset and the size of every part are multiples.
const partAlign = 512

// partPause is the time after which an arena that waits for a further block looks again whether its own parts have come back.
const partPause = 50 * time.Millisecond

// arenaBlock is a block of an arena. The arena's mutex guards it.
type arenaBlock struct {
	lease  *Lease
	free   []span           // by offset; neighbours are joined
	ranges map[uint64]*Part // by buffer id: those that others may still use
}

// span is a part of a block.
type span struct{ off, n uint64 }

// Part is a part of an arena.
type Part struct {
	arena *Arena
	block *arenaBlock
	span
	uses   int // ranges that may still exist, and one for the program until it frees the part
	freed  bool
	leased bool // Lease was called before
}

// Arena leases a block of n bytes of the pool for an arena. When it is full, the arena leases further blocks, each of n bytes or more, and
// releases each of them when nothing is allocated in it. The caller closes the arena.
//
// Errors: those of [Pool.Allocate]; [ErrUnsupported] if the service is too old.
func (p *Pool) Arena(ctx context.Context, n uint64) (*Arena, error) {
	a := &Arena{pool: p, bytes: max(n, 1)}
	_, err := a.grow(ctx, a.bytes)
	if err == nil {
		p.client.arenas.Store(a, nil)
	}
	return a, err
}

// Allocate returns a part of n bytes. Its content is undefined. If the arena has no room, Allocate asks the service which published parts have
// come back, and waits for the work of their readers; then it leases a further block, as [Pool.Allocate] does. While the pool has no memory for
// that, it asks again and again.
//
// Errors: those of [Pool.Allocate]; [ErrReleased] if the arena is closed.
func (a *Arena) Allocate(ctx context.Context, n uint64) (*Part, error) {
	n = aligned(n)
	if p, err := a.take(n); p != nil || err != nil {
		return p, err
	}
	for {
		for _, b := range a.all() {
			if err := a.collect(ctx, b); err != nil {
				return nil, err
			}
		}
		if p, err := a.take(n); p != nil || err != nil {
			return p, err
		}
		p, err := a.grow(ctx, n)
		if p != nil || err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
			return p, err
		}
	}
}

// aligned rounds up to a multiple of partAlign, and down if there is none.
func aligned(n uint64) uint64 {
	n = max(n, 1)
	return (n + min(partAlign-1, math.MaxUint64-n)) &^ (partAlign - 1)
}

func (a *Arena) all() []*arenaBlock {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.blocks)
}

// take returns a part of the first free span that is large enough; nil if there is none.
func (a *Arena) take(n uint64) (*Part, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, typed.Errorf(mempool.ErrReleased, "the arena is closed: allocate before Close")
	}
	for _, b := range a.blocks {
		if i := slices.IndexFunc(b.free, func(s span) bool { return s.n >= n }); i >= 0 {
			return a.takeAt(b, i, n), nil
		}
	}
	return nil, nil
}

// takeAt takes n bytes of a free span. The caller holds the mutex.
func (a *Arena) takeAt(b *arenaBlock, i int, n uint64) *Part {
	from := &b.free[i]
	p := &Part{arena: a, block: b, span: span{from.off, n}, uses: 1}
	if from.off, from.n = from.off+n, from.n-n; from.n == 0 {
		b.free = slices.Delete(b.free, i, i+1)
	}
	return p
}

// grow leases a block, and returns a part of n bytes of it; nil if it is the first block. It waits at most partPause for the memory of a
// further block.
func (a *Arena) grow(ctx context.Context, n uint64) (p *Part, err error) {
	size, limited := aligned(max(n, a.bytes)), ctx
	if len(a.all()) > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, partPause)
		defer cancel()
	}
	l, err := a.pool.Allocate(limited, Tensor{DType: Uint8, Shape: []uint64{size}})
	if err != nil {
		return nil, err
	}
	if err := l.WaitOn(ctx, mempool.CPU); err != nil {
		return nil, errors.Join(err, l.Release(false))
	}
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil, l.Release(false)
	}
	defer a.mu.Unlock()
	b := &arenaBlock{lease: l, free: []span{{0, size}}, ranges: make(map[uint64]*Part)}
	if a.blocks = append(a.blocks, b); len(a.blocks) > 1 {
		p = a.takeAt(b, 0, n)
	}
	return p, nil
}

// collect takes the ranges of a block back that are gone.
func (a *Arena) collect(ctx context.Context, b *arenaBlock) error {
	a.mu.Lock()
	var ids []uint64
	for id := range b.ranges {
		ids = append(ids, id)
	}
	a.mu.Unlock()
	c := a.pool.client
	for some := range slices.Chunk(ids, wire.MaxElements) {
		var reply wire.ReturnedReply
		err := c.session.Call(ctx, &wire.Returned{Lease: b.lease.held.Info().ID, Buffers: some}, &reply)
		if errors.Is(err, ErrReleased) || errors.Is(err, ErrBusy) {
			return nil // the block went back meanwhile, or there are too many fences to wait for
		}
		if err == nil && len(reply.Wait) > 0 {
			order := c.session.Timelines.Order()
			order.Begin(convert.Fences(reply.Wait), false)
			err = errors.Join(order.Before(ctx, mempool.CPU), order.Close())
		}
		if err != nil {
			return err
		}
		a.mu.Lock()
		var empty *Lease
		for _, id := range reply.Buffers {
			if p := b.ranges[id]; p != nil {
				delete(b.ranges, id)
				empty = cmp.Or(empty, p.dropLocked())
			}
		}
		a.mu.Unlock()
		if empty != nil {
			return empty.Release(false)
		}
	}
	return nil
}

// giveBack releases what the arena does not need any more, if its pool is the one in which somebody waits for memory. It does not wait.
func (a *Arena) giveBack(pool uint64) {
	s := a.pool.client.session
	if a.pool.Info().ID != pool || !a.giving.CompareAndSwap(false, true) {
		return
	}
	collect := func() {
		defer a.giving.Store(false)
		for _, b := range a.all() {
			if a.collect(s.Working(), b) != nil {
				return // the session ends: nobody waits for the error
			}
		}
	}
	if s.Go(collect) != nil {
		a.giving.Store(false)
	}
}

// drop ends one use of a part. The last use makes its memory free.
func (p *Part) drop() error {
	p.arena.mu.Lock()
	empty := p.dropLocked()
	p.arena.mu.Unlock()
	if empty != nil {
		return empty.Release(false)
	}
	return nil
}

// dropLocked does the same, and returns the lease of the block if it is empty now: the caller releases it, without the mutex.
func (p *Part) dropLocked() *Lease {
	a, b := p.arena, p.block
	if p.uses--; p.uses > 0 {
		return nil
	}
	i, _ := slices.BinarySearchFunc(b.free, p.off, func(s span, off uint64) int { return cmp.Compare(s.off, off) })
	b.free = slices.Insert(b.free, i, p.span)
	if i+1 < len(b.free) && b.free[i].off+b.free[i].n == b.free[i+1].off {
		b.free[i].n += b.free[i+1].n
		b.free = slices.Delete(b.free, i+1, i+2)
	}
	if i > 0 && b.free[i-1].off+b.free[i-1].n == b.free[i].off {
		b.free[i-1].n += b.free[i].n
		b.free = slices.Delete(b.free, i, i+1)
	}
	if at := slices.Index(a.blocks, b); at > 0 && b.free[0].n == b.lease.held.Info().Bytes {
		a.blocks = slices.Delete(a.blocks, at, at+1)
		return b.lease
	}
	return nil
}

// Bytes returns the part's memory; nil if the CPU cannot access it. See [Lease.Bytes].
//
// Errors: those of [Lease.Bytes].
func (p *Part) Bytes(ctx context.Context) ([]byte, error) {
	all, err := p.block.lease.Bytes(ctx)
	if all == nil || err != nil {
		return nil, err
	}
	return all[p.off : p.off+p.n : p.off+p.n], nil
}

// Pointer returns the part's address: see [Lease.Pointer].
//
// Errors: those of [Lease.Pointer].
func (p *Part) Pointer(ctx context.Context) (uintptr, error) {
	at, err := p.block.lease.Pointer(ctx)
	return at + uintptr(p.off), err
}

// Lease returns a write lease of the part, as a buffer with the description t, to publish it. From then on, do not write the part: its memory is
// used again when the program has freed it and no lease, name or channel needs it any more. A part may have several leases.
//
// Errors: [ErrInvalid] if t does not fit into the part or has several arrays, [ErrReleased] after [Part.Free], [ErrLimit], [ErrClosed].
func (p *Part) Lease(ctx context.Context, t Tensor) (*Lease, error) {
	n, err := t.Extent()
	switch {
	case err != nil:
		return nil, err
	case n > p.n || t.Arrays != nil || t.LayoutBytes > 0:
		return nil, typed.Errorf(mempool.ErrInvalid, "one array of at most %d bytes fits here, not %s%v of %d: allocate a larger part", p.n, t.DType, t.Shape, n)
	}
	a, c := p.arena, p.arena.pool.client
	a.mu.Lock()
	freed, again := p.freed, p.leased
	if !freed {
		p.uses++ // so that Free keeps the memory meanwhile
		p.leased = true
	}
	a.mu.Unlock()
	if freed {
		return nil, typed.Errorf(mempool.ErrReleased, "the part is freed: lease it before Free")
	}
	made := &Lease{client: c}
	r := &wire.AllocRange{Lease: p.block.lease.held.Info().ID, Offset: p.off, Tensor: convert.WireTensor(t)}
	err = c.session.Blocks.Obtain(ctx, &made.held, session.Once, r, new(uint64))
	if err != nil {
		return nil, errors.Join(err, p.drop())
	}
	if again {
		made.held.Used(ctx) // copies of the part's earlier leases may be on their way
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p.block.ranges[made.held.Info().Buffer] = p
	return made, nil
}

// Free gives the part back to the arena. Its memory is used again when no lease that [Part.Lease] made, no name and no channel needs it. A
// second call does nothing.
//
// Errors: [ErrDisconnected].
func (p *Part) Free() error {
	p.arena.mu.Lock()
	freed := p.freed
	p.freed = true
	p.arena.mu.Unlock()
	if freed {
		return nil
	}
	return p.drop()
}

// Close releases the arena. The program must not use its parts any more; what was published of them stays until its last reader is done.
//
// Errors: [ErrDisconnected].
func (a *Arena) Close() error {
	a.pool.client.arenas.Delete(a)
	a.mu.Lock()
	blocks := a.blocks
	a.closed, a.blocks = true, nil
	a.mu.Unlock()
	var errs []error
	for _, b := range blocks {
		errs = append(errs, b.lease.Release(false))
	}
	return errors.Join(errs...)
}
