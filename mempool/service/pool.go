package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/journal"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// Info describes the pool.
func (p *Pool) Info() mempool.PoolInfo { return p.rec.Info }

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
	access, info := accessOf(spec.Access, peer), p.rec.Info
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
		{"uids", p.rec.Access.UIDs, access.UIDs},
		{"gids", p.rec.Access.GIDs, access.GIDs},
	} {
		if have, want := fmt.Sprintf("%v", f.have), fmt.Sprintf("%v", f.want); have != want {
			differs = append(differs, fmt.Sprintf("its %s is %s, not %s", f.name, cmp.Or(have, "none"), cmp.Or(want, "none")))
		}
	}
	if differs != nil {
		return typed.Errorf(mempool.ErrExists, "there is a pool %q already, which differs from what was asked for: %s; open it as it is, or choose another name",
			info.Name, strings.Join(differs, "; "))
	}
	return nil
}

// Export returns what another process needs to map the pool. The service closes the files of the export.
func (p *Pool) Export() mempool.Export { return p.arena.Export() }

// DriverInUse returns how many bytes of the pool are allocated, according to the driver or the system. Tests compare this number with
// the pool's reserved bytes.
func (p *Pool) DriverInUse() (uint64, error) { return p.arena.InUse() }

// take finds a block of at least n bytes for a session's buffer, and counts the block for the session and its user. It tries, in this order:
//
//  1. if the bytes do not fit into the limit of the session or the user: a free block that counts for the session already
//  2. a free block without work under way
//  3. a new block, if the pool has room for one
//  4. a new block, after unused blocks of other sizes were freed
//  5. a free block on which work is under way
//  6. all this again, after the sessions with producers were asked to give back memory that they do not use
//
// Then take waits, if the waiter may wait, and begins again when the pool may have room. The caller holds Service.mu; take releases the
// mutex for waits and driver calls. After the waiter's time limit, take still waits for blocks that are being freed at that moment.
func (p *Pool) take(w *waiter, n uint64) (*ledger.Block, error) {
	s := w.session
	size, err := p.rec.BlockSize(n)
	if err != nil {
		return nil, &refusal{err, p, n}
	}
	late := uint64(0) // the value of p.queued at the time limit: freeing much memory takes a while
	awaits := func() bool {
		if !w.late {
			return false
		}
		if p.rec.Freeing() && w.relax() {
			return true
		}
		late = cmp.Or(late, p.queued)
		return p.returned.count < late && w.outlast(p.returned.next())
	}
	var mine *place // its place in the queue for room
	leave := func() {
		if mine != nil {
			mine.leave()
			mine = nil
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
		seen := p.room.changes // read before the lock is released for the first time
		if scarce == nil {
			relieved = p.relief.count
		}
		if err := s.rec.Alive(); err != nil {
			return nil, err
		}
		if p.rec.Closing {
			return nil, p.rec.Ending()
		}
		err := p.chargeable(s.rec, size)
		alone := err != nil || p.rec.Bounded() // other allocations may succeed although this one fails
		full := scarce != nil || p.rec.Reserved+size > p.rec.Info.MaxBytes
		if err != nil {
			if b := p.rec.Own(s.rec, size); b != nil {
				return p.reuse(s, b), nil
			}
		} else {
			if b := p.fits(s.rec, size, full, p.idle); b != nil {
				return p.reuse(s, b), nil
			}
			if !full {
				var b *ledger.Block
				if b, scarce = p.grow(w.ctx, s, size); !errors.Is(scarce, mempool.ErrOutOfMemory) {
					return b, scarce
				}
				continue
			}
			if scarce == nil && p.evict(p.rec.Reserved+size-p.rec.Info.MaxBytes) {
				continue
			}
			if b := p.fits(s.rec, size, full, p.any); b != nil && s.rec.Alive() == nil {
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
			w.hurry(!p.rec.Freeing())
			if !w.wait(p.relief.after(relieved)) && !awaits() {
				return nil, w.cause(hopeful(scarce))
			}
			scarce = nil
			continue
		}
		if w.patient() {
			if mine == nil {
				mine = p.room.join(size)
				w.long = func(waited time.Duration) {
					p.noteFullLocked(s.rec, size, fmt.Sprintf("and has waited %v for it", waited))
				}
			}
			w.hurry(!p.rec.Freeing() && !errors.Is(err, mempool.ErrRecalling))
			p.watchCharged() // nothing tells the service when GPU work ends
			if w.wait(mine.woken(seen, alone)) || awaits() {
				continue
			}
		}
		if err == nil {
			err = p.rec.Full(size) // made only now: most waits succeed
		}
		return nil, w.cause(hopeful(&refusal{err, p, size}))
	}
}

// reuse takes a free block for a buffer of a session. The caller holds Service.mu.
func (p *Pool) reuse(s *Session, b *ledger.Block) *ledger.Block {
	s.rec.Account(p.rec).Reuse(b)
	return b
}

// grow makes a new block. The caller holds Service.mu; grow releases the mutex for driver calls.
func (p *Pool) grow(ctx context.Context, s *Session, size uint64) (*ledger.Block, error) {
	svc := p.svc
	account := s.rec.Account(p.rec)
	growth := account.Grow(size)
	mem, err := p.allocate(ctx, size)
	if errors.Is(err, mempool.ErrOutOfMemory) && p.evict(p.rec.Cached) { // the pool's free blocks may use the memory that the driver lacks
		mem, err = p.allocate(ctx, size)
	}
	if err != nil {
		p.noteRefusedLocked(s.rec, size, err)
		growth.Failed()
		p.room.broadcast() // but not p.relief: allocations that ran out of memory would wake each other without end
		p.closeIfEmpty()
		if errors.Is(err, mempool.ErrOutOfMemory) && p.rec.Held > 0 {
			err = fmt.Errorf("%w (%w)", err, mempool.ErrRecalling)
		}
		return nil, err
	}
	b := growth.Done()
	svc.blocks.Set(b.ID, &blockMemory{Allocation: mem})
	if err = s.rec.Alive(); err == nil && p.rec.Closing {
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
func (p *Pool) allocate(ctx context.Context, size uint64) (mempool.Allocation, error) {
	p.svc.mu.Unlock()
	defer p.svc.mu.Lock()
	mem, err := p.arena.Allocate(ctx, size)
	return mem, p.svc.journal.Called(journal.AllocateBlock, err)
}
