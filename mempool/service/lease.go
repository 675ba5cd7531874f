package service

import (
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// Lease is one session's hold on one buffer, to write or to read.
type Lease struct {
	id      uint64
	session *Session
	buffer  *buffer
	write   bool // guarded by Service.mu, like what follows
	ended   bool
	wait    fences         // what must be reached before the memory is used
	order   *mempool.Order // of a session in this process
}

// ID identifies the lease within the epoch.
func (l *Lease) ID() uint64 { return l.id }

// Info describes the lease.
func (l *Lease) Info() mempool.LeaseInfo {
	svc := l.session.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	info := l.describe()
	info.Tensor = info.Tensor.Clone()
	return info
}

// describe is Info with Service.mu held, and with the buffer's own tensor, which must not be changed.
func (l *Lease) describe() mempool.LeaseInfo {
	b := l.buffer
	event, alone := b.event.told()
	return mempool.LeaseInfo{
		ID: l.id, Buffer: b.id, Generation: b.generation, Write: l.write,
		Pool: b.block.pool.info.ID, Block: b.block.id, BlockBytes: b.block.size,
		Bytes: b.bytes, Tensor: *b.tensor, Wait: l.wait.plain(), Event: event, EventOnly: alone,
	}
}

// Export is what the lease's session needs to map the buffer's block. first is false if the session was given it before
// and has not said [Session.Dropped] since: it need not be sent again. Its files stay the service's.
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

// Release ends the lease. incomplete says that what a write lease was for did not happen: the buffer has then failed. It waits for
// no work: the next user of the memory comes after what the lease began.
//
// Errors: [mempool.ErrReleased] if it had ended before; the driver's where what this process began on the memory could neither be
// marked nor waited for: the lease has not ended then, for nobody may use the memory yet.
func (l *Lease) Release(incomplete bool) error { return l.release(incomplete) }

// ReleaseAfter is Release for memory that queues of the caller's still use: the next user of the memory comes after what
// they hold now.
//
// Errors: [mempool.ErrReleased].
func (l *Lease) ReleaseAfter(queues ...mempool.Queue) error { return l.release(false, queues...) }

func (l *Lease) release(incomplete bool, after ...mempool.Queue) error {
	done, err := l.fences(after...)
	if err != nil {
		return err
	}
	return l.ReleaseAt(incomplete, done)
}

// ReleaseAt is Release for sessions that make the fences of their timeline themselves: these say when their work is done.
//
// Errors: [mempool.ErrReleased] if it had ended before, [mempool.ErrInvalid] for fences that are not of the session's own timeline.
func (l *Lease) ReleaseAt(incomplete bool, done []mempool.Fence) error {
	if err := l.releaseAt(incomplete, done); err != nil {
		return err
	}
	return l.finish()
}

// finish gives back what this process opened for the lease.
func (l *Lease) finish() error {
	if l.order == nil {
		return nil
	}
	return l.order.Close()
}

func (l *Lease) releaseAt(incomplete bool, done []mempool.Fence) error {
	svc := l.session.svc
	svc.mu.Lock()
	defer svc.unlock()
	return l.endAt(incomplete, done)
}

// endAt is releaseAt with Service.mu held.
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

// end ends the lease; done is what the next user of the memory must wait for. Service.mu is held.
func (l *Lease) end(incomplete bool, done fences) {
	b := l.buffer
	l.ended = true
	remove(&l.session.leases, &l.session.most.leases, l.id)
	l.session.svc.leases--
	if l.write {
		b.writer = nil
		b.failed = b.failed || incomplete
		b.ready = b.ready.more(done)
		b.event = nil
	} else {
		b.readers.remove(l)
		b.block.fences = b.block.fences.more(done)
	}
	if b.event != nil && b.event.voucher == l {
		b.event = nil
		b.ready = b.ready.more(done)
		if l.session.ended && l.session.notify != nil { // it did not say, and is perhaps dead
			told := make(failures)
			b.fail(told)
			told.tell()
		}
	}
	for _, t := range l.wait {
		t.timeline.unshow()
	}
	l.wait = nil
	b.recycleUnused()
}
