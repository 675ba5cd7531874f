package service

import (
	"context"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// Lease is one session's right to use one buffer, to write or to read.
type Lease struct {
	id      uint64
	session *Session
	buffer  *buffer
	write   bool // Service.mu guards write and the fields below
	ended   bool
	began   uint32 // seconds after the service began; 4 bytes, so that the struct does not grow
	wait    fences // the fences that must be reached before the session uses the memory
}

// GrantedLease is a new lease, with a description of the lease for the session.
type GrantedLease struct {
	Lease *Lease
	// Grant describes the lease. Other results may share its tensor, so the caller must not change the tensor.
	Grant mempool.Grant
	// Mapped says whether the session already has the export of the lease's block. If Mapped is false, the caller must send the session what
	// [Lease.Export] returns.
	Mapped bool
}

// granted returns a grant that describes the lease. The caller holds Service.mu.
func (l *Lease) granted() GrantedLease {
	_, mapped := l.session.mapped[l.buffer.block.id]
	return GrantedLease{Lease: l, Grant: l.describe(), Mapped: mapped}
}

// describe returns a description of the lease. The description shares its tensor with the buffer, so the caller must not change the tensor.
// The caller holds Service.mu.
func (l *Lease) describe() mempool.Grant {
	b := l.buffer
	var event []byte
	if b.event != nil {
		event = b.event.Handle()
	}
	return mempool.Grant{
		ID: l.id, Buffer: b.id, Generation: b.generation, Write: l.write,
		Pool: b.block.pool.info.ID, Block: b.block.id, BlockBytes: b.block.size,
		Bytes: b.bytes, Tensor: *b.tensor, Wait: l.wait.plain(), Event: event,
	}
}

// Export returns what the lease's session needs to map the buffer's block. The result `first` is false if the session already got the
// export and has not called [Session.Dropped] for the block since then. In this case, the caller need not send the export again. The
// service closes the files of the export, so the caller must not close them.
func (l *Lease) Export() (x mempool.Export, first bool, err error) {
	b := l.buffer.block
	if x, err = b.exportOnce(); err != nil {
		return mempool.Export{}, false, err
	}
	svc := l.session.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	if l.ended {
		return mempool.Export{}, false, l.released()
	}
	s := l.session
	if _, ok := s.mapped[b.id]; ok {
		return x, false, nil
	}
	if err := s.mayMap(); err != nil {
		return mempool.Export{}, false, err
	}
	b.mapped.add(s)
	s.mapped[b.id] = b
	return x, true, nil
}

// Undo ends a lease. The caller calls it if it could not send the grant of the lease to the session. The argument `exported` is true if the
// result `first` of [Lease.Export] was true, and the caller could not send the export either.
//
// Errors: [mempool.ErrReleased] if the lease has already ended.
func (l *Lease) Undo(exported bool) error {
	s, b := l.session, l.buffer.block
	s.svc.mu.Lock()
	defer s.svc.unlock()
	if exported && s.mapped[b.id] == b {
		b.pool.unmap(s, b)
	}
	return l.endAt(false, nil)
}

// endAt ends the lease. The fences in `done` say when the session's work on the memory is done. The caller holds Service.mu.
func (l *Lease) endAt(incomplete bool, done []mempool.Fence) error {
	if l.ended {
		return l.released()
	}
	ts, err := l.session.fences(done)
	if err != nil {
		return err
	}
	l.end(incomplete, ts)
	return nil
}

func (l *Lease) released() error {
	return situation.Of(mempool.ErrReleased, "lease %d of session %d has ended", l.id, l.session.id)
}

// end ends the lease. If the argument `incomplete` is true, the content will never be complete. The next user of the memory must wait for
// the fences in `done`. The caller holds Service.mu.
func (l *Lease) end(incomplete bool, done fences) {
	b := l.buffer
	l.ended = true
	remove(&l.session.leases, &l.session.most.leases, l.id)
	l.session.svc.leases.remove(l.id)
	b.block.pool.has.leases--
	if l.write {
		b.writer = nil
		if incomplete && !b.failed && l.session.ended {
			l.session.breaks(b)
		}
		b.failed = b.failed || incomplete
		b.ready = b.ready.more(done)
		b.event = nil
	} else {
		b.readers.remove(l)
		b.block.fences = b.block.fences.more(done)
	}
	for _, t := range l.wait {
		t.timeline.unshow()
	}
	l.wait = nil
	b.recycleUnused()
}

// AwaitWork waits until all fences are reached that a user of the lease's memory must wait for. The server calls AwaitWork for sessions
// that do not understand fences.
//
// Errors: [mempool.ErrBusy] if the wait takes longer than `limit`, [mempool.ErrReleased], [mempool.ErrContentFailed],
// [mempool.ErrProducerDied], the context's error.
func (l *Lease) AwaitWork(ctx context.Context, limit time.Duration) error {
	svc := l.session.svc
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for pause := drainPause; ; pause = min(2*pause, drainRest) {
		svc.mu.Lock()
		l.buffer.checkContent()
		waits, ended, incomplete := slices.ContainsFunc(l.wait, func(t fence) bool { return !t.over() }), l.ended, error(nil)
		if l.buffer.failed {
			incomplete = l.buffer.incomplete()
		}
		svc.mu.Unlock()
		switch {
		case ended:
			return l.released()
		case incomplete != nil && !l.write:
			return incomplete
		case !waits:
			return nil
		}
		select {
		case <-time.After(pause): // a stream that writes a word notifies nobody
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return situation.Of(mempool.ErrBusy, "work on buffer %d is under way after %v", l.buffer.id, limit)
		}
	}
}
