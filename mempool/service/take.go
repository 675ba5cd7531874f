package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/eventlog"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// take finds a block of at least n bytes for a session's buffer, and counts the block for the session and its user. It tries, in this order:
//
//  1. if the bytes do not fit into the limit of the session or the user: a free block that counts for the session already
//  2. a free block without work under way
//  3. a new block, if the pool has room for one
//  4. a new block, after unused blocks of other sizes were freed
//  5. a free block on which work is under way
//  6. all this again, after sessions were asked to give back memory that they do not use
//
// A call that may not wait takes no memory that calls which have waited longer, and are about to try again, could take.
//
// Then take waits, if the waiter may wait, and begins again when the pool may have room. The caller holds Service.mu; take releases the
// mutex for waits and driver calls. After the waiter's time limit, take still waits for blocks that are being freed at that moment.
func (p *Pool) take(w waiter, n uint64) (*ledger.Block, error) {
	size, err := p.rec.BlockSize(n)
	if err != nil {
		return nil, &refusal{err, p, n}
	}
	t := taking{waiter: w, p: p, size: size}
	defer t.end()
	for {
		if err := t.begin(); err != nil {
			return nil, err
		}
		b, again, err := t.find()
		if b != nil || err != nil {
			return b, err
		}
		if !again && !t.ask() && !t.waitForRoom() {
			return nil, t.cause(t.refused())
		}
	}
}

// taking is one call of [Pool.take].
type taking struct {
	waiter
	p    *Pool
	size uint64

	inQueue *place // in the queue for room; nil: none
	asked   bool   // the call counts as one that finds no room
	told    bool   // sessions were asked to give back memory
	last    uint64 // the value of p.queued at the time limit; 0: before that

	// These hold for one round, which begins with the method begin.
	changes  uint64 // p.room.changes
	beyond   error  // why the bytes cannot count for the session or its user; nil: they can
	promised bool   // the room is promised to others, which have waited for it
	// scarce says why the driver had no memory for a new block, although the pool has room. It holds until a wait has ended. relieved is the
	// value of p.relief.count before that.
	scarce   error
	relieved uint64
}

// end leaves the queue and counts the call no more.
func (t *taking) end() {
	t.stop()
	t.leavePlace()
	if t.asked {
		t.p.demand.count(t.session, -1)
	}
}

func (t *taking) leavePlace() {
	if t.inQueue != nil {
		t.inQueue.leave()
		t.inQueue = nil
	}
}

// begin begins a round. It returns an error if the session or the pool ends.
func (t *taking) begin() error {
	t.changes = t.p.room.changes // before the mutex is released for the first time
	if t.scarce == nil {
		t.relieved = t.p.relief.count
	}
	if err := t.session.rec.Alive(); err != nil {
		return err
	}
	if t.p.rec.Closing {
		return t.p.rec.Ending()
	}
	t.beyond = t.p.chargeable(t.session.rec, t.size)
	return nil
}

// find tries the steps 1 to 5. It says whether to begin another round at once, because it has freed memory or because the driver has none.
func (t *taking) find() (b *ledger.Block, again bool, err error) {
	if t.beyond == nil {
		if t.promised = !t.patient() && t.p.promisedToOthers(t.size); t.promised {
			return nil, false, nil
		}
		return t.findCounted()
	}
	return t.reuse(t.p.rec.Own(t.session.rec, t.size)), false, nil
}

// promisedToOthers says whether taking `size` bytes would leave too little room for allocations that have waited and are about to try again.
// The caller holds Service.mu.
func (p *Pool) promisedToOthers(size uint64) bool {
	room := p.rec.Info.MaxBytes - min(p.rec.Info.MaxBytes, p.rec.Reserved-p.rec.Cached)
	left := room
	for pl := range p.room.due(room) {
		if p.chargeable(pl.session, pl.size) != nil { // it will find no room
			continue
		}
		if left < pl.size+size {
			return true
		}
		left -= pl.size
	}
	return false
}

// findCounted tries the steps 2 to 5, whose block counts for the session anew.
func (t *taking) findCounted() (b *ledger.Block, again bool, err error) {
	p := t.p
	full := t.scarce != nil || p.rec.Reserved+t.size > p.rec.Info.MaxBytes
	if b = t.reuse(t.fit(full, p.idle)); b != nil {
		return b, false, nil
	}
	if !full {
		b, err = t.grow()
		if errors.Is(err, mempool.ErrOutOfMemory) {
			t.scarce = err
			return nil, true, nil
		}
		return b, false, err
	}
	if t.scarce == nil && p.evict(p.rec.Reserved+t.size-p.rec.Info.MaxBytes) {
		return nil, true, nil
	}
	if b := t.fit(full, p.any); b != nil && t.session.rec.Alive() == nil {
		return t.reuse(b), false, nil
	}
	return nil, false, nil
}

// ask asks sessions for memory, once in a call. It says whether some memory has come back already.
func (t *taking) ask() (more bool) {
	if t.asked {
		return false
	}
	t.asked = true
	t.p.demand.count(t.session, +1)
	more, t.told = t.p.demand.meet()
	return more
}

// waitForRoom waits until there may be room. It returns false if the request may not wait any longer.
func (t *taking) waitForRoom() bool {
	p := t.p
	if t.scarce != nil {
		t.leavePlace()
		t.hurry(!p.rec.Freeing())
		if !t.wait(p.relief.after(t.relieved)) && !t.outlastFreeing() {
			return false
		}
		t.scarce = nil
		return true
	}
	if !t.patient() {
		return false
	}
	if t.inQueue == nil {
		t.inQueue = p.room.join(t.session.rec, t.size)
		s, size := t.session.rec, t.size // and not t: it would move to the heap
		t.long = func(waited time.Duration) {
			p.noteFullLocked(s, size, fmt.Sprintf("and has waited %v for it", waited))
		}
	}
	t.hurry(!p.rec.Freeing() && !errors.Is(t.beyond, mempool.ErrRecalling))
	p.watchCharged()                            // nothing tells the service when GPU work ends
	alone := t.beyond != nil || p.rec.Bounded() // other allocations may succeed although this one fails
	return t.wait(t.inQueue.woken(t.changes, alone)) || t.outlastFreeing()
}

// outlastFreeing waits, after the time limit, for the blocks that are being freed: freeing much memory takes a while.
func (t *taking) outlastFreeing() bool {
	p := t.p
	if !t.late {
		return false
	}
	if p.rec.Freeing() && t.relax() {
		return true
	}
	t.last = cmp.Or(t.last, p.queued)
	return p.returned.count < t.last && t.outlast(p.returned.next())
}

// refused returns the error of a call that found no block.
func (t *taking) refused() error {
	err := t.scarce
	if err == nil {
		why := t.beyond
		switch {
		case why != nil:
		case t.promised:
			why = typed.Errorf(mempool.ErrLimit, "no room for %d bytes in pool %q: requests that have waited for memory get what is free", t.size, t.p.rec.Info.Name)
		default:
			why = t.p.rec.Full(t.size) // made only now: most waits succeed
		}
		err = &refusal{why, t.p, t.size}
	}
	if t.told && !t.patient() {
		return fmt.Errorf("%w (%w)", err, mempool.ErrWanted)
	}
	return err
}

// fit finds a cached block of the size. The argument `find` is a function that returns a block of a given size. If `find` returns nil and
// `full` is true (the pool cannot grow), fit calls `find` with larger sizes: up to about twice the size, and only sizes that the session's
// limits allow.
func (t *taking) fit(full bool, find func(size uint64) *ledger.Block) *ledger.Block {
	if b := find(t.size); b != nil || !full {
		return b
	}
	for _, have := range t.p.rec.Sizes() {
		if have > t.size && have/2 <= t.size && t.p.chargeable(t.session.rec, have) == nil {
			if b := find(have); b != nil {
				return b
			}
		}
	}
	return nil
}

// reuse takes a free block for the session's buffer; b may be nil.
func (t *taking) reuse(b *ledger.Block) *ledger.Block {
	if b != nil {
		t.session.rec.Account(t.p.rec).Reuse(b)
	}
	return b
}

// grow makes a new block. It releases Service.mu for driver calls.
func (t *taking) grow() (*ledger.Block, error) {
	p, rec, size := t.p, t.session.rec, t.size
	account := rec.Account(p.rec)
	growth := account.Grow(size)
	mem, err := p.allocate(t.ctx, size)
	if errors.Is(err, mempool.ErrOutOfMemory) && p.evict(p.rec.Cached) { // the pool's free blocks may use the memory that the driver lacks
		mem, err = p.allocate(t.ctx, size)
	}
	if err != nil {
		p.noteRefusedLocked(rec, size, err)
		growth.Failed()
		p.room.broadcast() // but not p.relief: allocations that ran out of memory would wake each other without end
		p.closeIfEmpty()
		if errors.Is(err, mempool.ErrOutOfMemory) && p.rec.Held > 0 {
			err = fmt.Errorf("%w (%w)", err, mempool.ErrRecalling)
		}
		return nil, err
	}
	b := growth.Done(firstGeneration(p.svc.epoch), mem.place, mem.export)
	p.svc.blocks.Set(b.ID, mem.memory)
	if err = rec.Alive(); err == nil && p.rec.Closing {
		err = p.rec.Ending()
	}
	if err != nil { // the session or the pool ended while the block was made
		account.GiveUp(b)
		p.recycle(b)
		return nil, err
	}
	return b, nil
}

// allocate calls the driver, which allocates the memory of a new block. The caller holds Service.mu; allocate releases the mutex during the
// driver call.
func (p *Pool) allocate(ctx context.Context, size uint64) (b newBlock, err error) {
	p.svc.mu.Unlock()
	defer p.svc.mu.Lock()
	backing, number, err := p.ensureBacking()
	if err != nil {
		return b, err
	}
	mem, err := backing.Allocate(ctx, size)
	if p.svc.eventLog.Called(eventlog.AllocateBlock, err) != nil {
		return b, err
	}
	return p.storeBlock(mem, backing, number), nil
}

// idle finds a free block that has the given size and on which no work is under way. The caller holds Service.mu.
func (p *Pool) idle(size uint64) *ledger.Block {
	b := p.rec.Idle(size)
	if b == nil && p.lookAtSome(size) {
		b = p.rec.Idle(size)
	}
	return b
}

// lookAtSome checks a few of the newest and of the oldest pending blocks of a size. It stops at the first block whose work has ended, and
// calls lookAgain for that block: the result is then true. It does not check the other blocks, because all sessions must wait for Service.mu
// during the check: watchCharged checks them later. The caller holds Service.mu.
func (p *Pool) lookAtSome(size uint64) bool {
	sample, more := p.rec.Sample(size, 16)
	for b := range sample {
		if p.svc.timelines.Quiet(b) {
			p.lookAgain(b)
			return true
		}
	}
	if more {
		p.passed = true
		p.watchCharged()
	}
	return false
}

// any finds a free block of the given size. It returns a block on which work is under way only if there is no other free block of this
// size. The caller holds Service.mu.
func (p *Pool) any(size uint64) *ledger.Block {
	if b := p.idle(size); b != nil {
		return b
	}
	return p.rec.Oldest(size)
}
