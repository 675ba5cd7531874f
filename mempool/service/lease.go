package service

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// Lease is one session's right to use one buffer, to write or to read.
type Lease struct {
	session *Session
	rec     *ledger.Lease
}

// GrantedLease is a new lease, with a description of the lease for the session.
type GrantedLease struct {
	Lease Lease
	// Grant describes the lease. Other results may share its tensor, so the caller must not change the tensor.
	Grant mempool.Grant
	// Mapped says whether the session had the export of the lease's block when the lease was granted. If Mapped is false, the caller calls
	// [Lease.Export], and sends the session the export if the result `first` is true.
	Mapped bool
	// Version is the version of the content of a name, if [Session.Get] returns the lease.
	Version uint64
}

// describe returns a description of the lease. The description shares its tensor with the buffer, so the caller must not change the tensor.
// The caller holds s.mu.
func (s *Service) describe(l *ledger.Lease) mempool.Grant {
	b := l.Buffer
	return mempool.Grant{
		ID: l.ID, Buffer: b.ID, Generation: b.Generation, Write: l.Write,
		Pool: b.Block.Pool.Info.ID, Block: b.Block.ID, BlockBytes: b.Block.Size,
		Bytes: b.Bytes, Base: b.Base(), Tensor: *b.Tensor, Wait: s.timelines.PendingOrFailed(slices.Clone(l.Wait)), Event: b.Event(),
	}
}

// grant makes a lease. The caller holds Service.mu, and b.Available has returned nil.
func (s *Session) grant(ctx context.Context, b *ledger.Buffer, write bool) GrantedLease {
	svc := s.svc
	s.noteUse()
	b.SetReady(svc.timelines.PendingOrFailed(b.Ready))
	wait := b.Ready.Union(nil)
	if write && b.Whole() == nil { // the session that makes a range leases the whole, and has used the memory before
		b.Block.SetFences(svc.timelines.Pending(b.Block.Fences))
		wait = b.Ready.Union(b.Block.Fences)
	}
	l := svc.ledger.Grant(b, s.rec, write, wait, uint32(time.Since(svc.began)/time.Second))
	s.keepAnswerLocked(ctx, l.ID)
	_, mapped := s.rec.Mapped[b.Block.ID]
	return GrantedLease{Lease: Lease{s, l}, Grant: svc.describe(l), Mapped: mapped}
}

// Lease leases a buffer by its id and generation. It waits until leases that exclude the new lease have ended, at most for the time `wait`.
//
// Errors: [mempool.ErrStale] for a buffer that the session does not see, or that has another generation, [mempool.ErrInvalid] for a write
// lease on a part of an arena, [mempool.ErrBusy], [mempool.ErrContentFailed], [mempool.ErrProducerDied], [mempool.ErrDenied],
// [mempool.ErrLimit], [mempool.ErrClosed], the context's error.
func (s *Session) Lease(ctx context.Context, id, generation uint64, write bool, wait time.Duration) (GrantedLease, error) {
	svc := s.svc
	return s.leaseFound(ctx, "", write, wait, func() (*ledger.Buffer, *signal, error) {
		b := ledger.Find(s.rec, svc.ledger.Buffers.Get(id))
		switch {
		case b == nil:
			return nil, nil, typed.Errorf(mempool.ErrStale, "there is no buffer %d in a pool that user %d may use: it is gone, or it never was there", id, s.rec.Peer.UID)
		case b.Generation != generation:
			return nil, nil, typed.Errorf(mempool.ErrStale, "buffer %d is of generation %d, not %d: its memory was used again, or another service has the "+
				"buffer", id, b.Generation, generation)
		}
		return b, nil, nil
	})
}

// leaseFound leases the buffer that the function `find` returns. It waits until the session can lease the buffer, but not longer than the time
// `wait`. The argument `text` is the name that `find` searches for, or empty. leaseFound calls `find` with Service.mu held. If `find` returns
// an error, it may also return a signal. After this signal, leaseFound calls `find` again.
func (s *Session) leaseFound(ctx context.Context, text string, write bool, wait time.Duration, find func() (*ledger.Buffer, *signal, error)) (g GrantedLease, err error) {
	w := newWaiter(ctx, s, wait, purpose{what: forName, name: text})
	defer w.stop()
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	for {
		if err := s.rec.Alive(); err != nil {
			return g, err
		}
		b, again, err := find()
		if err == nil {
			pool := b.Block.Pool
			if !pool.Access.Allows(s.rec.Peer) {
				return g, pool.Denied(s.rec.Peer)
			}
			svc.checkContent(b)
			if err = b.Available(write); err == nil {
				if err = svc.ledger.MayLease(s.rec); err != nil {
					return g, err
				}
				if err = svc.crowded(b, write); err == nil {
					return s.grant(ctx, b, write), nil
				}
				again = soon()
			}
			if !errors.Is(err, mempool.ErrBusy) {
				return g, err
			}
		}
		if b != nil {
			w.purpose = purpose{what: forBuffer, pool: b.Block.Pool, buffer: b.ID}
			w.long = func(waited time.Duration) { svc.noteLeaseLong(s.rec, b, waited) }
			if again == nil && w.patient() {
				again = svc.changed.next(b)
			}
		}
		if again == nil {
			return g, err
		}
		if !w.wait(again.next()) {
			if errors.Is(err, mempool.ErrNotFound) && wait > 0 {
				err = typed.Errorf(mempool.ErrTimeout, "waited %v: %v", wait, err)
			}
			return g, w.cause(err)
		}
	}
}

// Export returns what the lease's session needs to map the buffer's block. The result `first` is false if the session already got the
// export and has not called [Session.Dropped] for the block since then. In this case, the caller need not send the export again. The
// service closes the files of the export, so the caller must not close them.
func (l Lease) Export() (x mempool.Export, first bool, err error) {
	s, b := l.session, l.rec.Buffer.Block
	svc := s.svc
	svc.mu.Lock()
	memory := svc.memoryOf(b)
	svc.mu.Unlock()
	if memory == nil { // the lease has ended, and its block is freed
		return mempool.Export{}, false, l.rec.Released()
	}
	if x, err = memory.exportOnce(svc.eventLog); err != nil {
		return mempool.Export{}, false, err
	}
	svc.mu.Lock()
	defer svc.mu.Unlock()
	if l.rec.Ended {
		return mempool.Export{}, false, l.rec.Released()
	}
	if _, ok := s.rec.Mapped[b.ID]; ok {
		return x, false, nil
	}
	if err := svc.ledger.Limits.MayMap(s.rec); err != nil {
		return mempool.Export{}, false, err
	}
	s.rec.Map(b)
	return x, true, nil
}

// Undo ends a lease. The caller calls it if it could not send the grant of the lease to the session. The argument `exported` is true if the
// result `first` of [Lease.Export] was true, and the caller could not send the export either.
//
// Errors: [mempool.ErrReleased] if the lease has already ended.
func (l Lease) Undo(exported bool) error {
	s, b := l.session, l.rec.Buffer.Block
	s.svc.mu.Lock()
	defer s.svc.freeAndUnlock()
	if exported && s.rec.Mapped[b.ID] == b {
		s.svc.pools.of(b.Pool).unmapLocked(s.rec, b)
	}
	return l.endLocked(false, nil)
}

// endLocked ends the lease. The fences in `done` say when the session's work on the memory is done.
func (l Lease) endLocked(incomplete bool, done []mempool.Fence) error {
	if l.rec.Ended {
		return l.rec.Released()
	}
	ts, err := l.session.rec.PromiseFences(done)
	if err != nil {
		return err
	}
	svc := l.session.svc
	svc.endLeaseLocked(l.rec, incomplete, svc.timelines.Pending(ts))
	return nil
}

// endLeaseLocked ends a lease. If the argument `incomplete` is true, the content will never be complete. The next user of the memory must
// wait for the fences in `done`.
func (s *Service) endLeaseLocked(l *ledger.Lease, incomplete bool, done ledger.Fences) {
	b := l.Buffer
	gone := l.End()
	if l.Write {
		if incomplete && !b.Failed && l.Session.Ended {
			s.broken.add(l.Session, b, s.changed[b.ID] != nil) // a channel that retains the buffer does not need it
		}
		if incomplete && !b.Failed {
			b.Failed = true
			s.ledger.Touch(b)
		}
		b.SetReady(s.timelines.Add(b.Ready, done))
		b.SetEvent(nil)
	} else {
		b.Block.SetFences(s.timelines.Add(b.Block.Fences, done))
	}
	for _, t := range gone {
		s.retireLocked(t)
	}
	s.recycleUnused(b)
}

// AwaitWork waits until all fences are reached that a user of the lease's memory must wait for. The server calls AwaitWork for sessions
// that do not understand fences.
//
// Errors: [mempool.ErrBusy] if the wait takes longer than `limit`, [mempool.ErrReleased], [mempool.ErrContentFailed],
// [mempool.ErrProducerDied], the context's error.
func (l Lease) AwaitWork(ctx context.Context, limit time.Duration) error {
	svc, b := l.session.svc, l.rec.Buffer
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for pause := drainPause; ; pause = min(2*pause, drainRest) {
		svc.mu.Lock()
		svc.checkContent(b)
		waits := slices.ContainsFunc(l.rec.Wait, func(t mempool.Fence) bool { return !svc.timelines.Over(t) })
		ended, write, incomplete := l.rec.Ended, l.rec.Write, error(nil)
		if b.Failed {
			incomplete = b.Incomplete()
		}
		svc.mu.Unlock()
		switch {
		case ended:
			return l.rec.Released()
		case incomplete != nil && !write:
			return incomplete
		case !waits:
			return nil
		}
		select {
		case <-time.After(pause): // a stream that writes a word notifies nobody
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return typed.Errorf(mempool.ErrBusy, "work on buffer %d is under way after %v", b.ID, limit)
		}
	}
}
