package service

import (
	"context"
	"time"

	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// buffer is one use of a block. It is guarded by Service.mu. There are many: what it has room for costs each of them.
type buffer struct {
	id         uint64
	generation uint64
	block      *block
	tensor     *mempool.Tensor // may be others' too, and never changes
	bytes      uint64
	account    *account // that its block is charged to

	writer  *Lease
	readers smallSet[*Lease]
	names   int32  // that hold it
	frames  int32  // of channels that hold it
	ready   fences // when its content is complete
	event   *publishedEvent
	failed  bool
	doubted bool   // its writer is gone, and it cannot be told yet whether a channel has it; if none has, it has failed
	made    uint32 // seconds after the service began
	changed signal
}

// publishedEvent is an interprocess event that came with a buffer's content.
type publishedEvent struct {
	handle  []byte
	voucher *Lease // whose end says when the event's work is done, for no fence does; nil: one does
}

// told is the handle of the event that came with the content, and whether it is all that says when that is complete.
func (e *publishedEvent) told() (handle []byte, alone bool) {
	if e == nil {
		return nil, false
	}
	return e.handle, e.voucher != nil
}

// available says why a lease cannot be had now: nil if it can, ErrBusy if it may be later, something else if never.
func (b *buffer) available(write bool) error {
	switch {
	case b.failed:
		return situation.Of(mempool.ErrProducerDied, "buffer %d is incomplete: the process that wrote it died before finishing", b.id)
	case b.doubted:
		return situation.Of(mempool.ErrBusy, "the session that wrote buffer %d has ended, and it cannot be told yet whether the buffer is complete", b.id)
	case b.writer != nil:
		return situation.Of(mempool.ErrBusy, "buffer %d is being written by session %d (pid %d)", b.id, b.writer.session.id, b.writer.session.peer.PID)
	case write && b.readers.len() > 0:
		return situation.Of(mempool.ErrBusy, "buffer %d is leased %d times to be read, and a write lease wants it alone", b.id, b.readers.len())
	case write && b.frames > 0:
		return situation.Of(mempool.ErrBusy, "buffer %d is in a channel, and a write lease wants it alone", b.id)
	}
	return nil
}

// crowded says why a lease cannot be had now although nobody excludes it: it would come with more fences than can be told.
// Service.mu is held.
func (b *buffer) crowded(write bool) error {
	n := func() int {
		if write {
			return len(b.ready) + len(b.block.fences)
		}
		return len(b.ready)
	}
	if n() <= maxFences {
		return nil
	}
	b.ready, b.block.fences = b.ready.pending(), b.block.fences.pending()
	if n() <= maxFences {
		return nil
	}
	return situation.Of(mempool.ErrBusy, "work on buffer %d is under way that %d fences stand for, and a lease comes with %d at most", b.id, n(), maxFences)
}

// grant makes a lease. Service.mu is held, and available said nil.
func (b *buffer) grant(s *Session, write bool) *Lease {
	svc := b.block.pool.svc
	s.noteUse()
	svc.lastLease++
	l := &Lease{id: svc.lastLease, session: s, buffer: b, write: write, began: uint32(time.Since(svc.began) / time.Second)}
	b.ready = b.ready.pending()
	if write {
		b.writer = l
		b.block.fences = b.block.fences.pending()
		l.wait = b.ready.union(b.block.fences)
	} else {
		b.readers.add(l)
		l.wait = b.ready.union(nil)
	}
	for _, t := range l.wait {
		t.timeline.show(s)
	}
	s.leases[l.id] = l
	svc.leases++
	return l
}

// recycleUnused recycles the block of a buffer that nothing holds any more. Service.mu is held.
func (b *buffer) recycleUnused() {
	b.changed.broadcast()
	if b.writer != nil || b.readers.len() > 0 || b.names > 0 || b.frames > 0 {
		return
	}
	b.block.fences = b.block.fences.union(b.ready).pending()
	p := b.block.pool
	remove(&p.svc.buffers, &p.svc.most.buffers, b.id)
	p.used -= b.bytes
	delete(p.lent, b.block.id)
	b.account.remove(b.block.size)
	p.waiters.broadcast()
	p.recycle(b.block)
}

// lease waits until the buffer that find returns, the one published as text or any, can be leased, and leases it. find is called with Service.mu held; it
// may fail with ErrNotFound and a signal of when to look again.
func (s *Session) lease(ctx context.Context, text string, write bool, wait time.Duration, find func() (*buffer, *signal, error)) (g Grant, err error) {
	w := s.newWaiter(ctx, wait, purpose{what: forName, name: text})
	defer w.stop()
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	for {
		if err := s.alive(); err != nil {
			return g, err
		}
		b, again, err := find()
		if err == nil {
			pool := b.block.pool
			if !pool.access.Allows(s.peer) {
				return g, pool.denied(s.peer)
			}
			if _, alone := b.event.told(); alone && !s.ordered {
				return g, situation.Of(mempool.ErrUnavailable, "only an interprocess event says when buffer %d is complete, and session %d understands "+
					"neither those nor timelines", b.id, s.id)
			}
			again = &b.changed
			if err = b.available(write); err == nil {
				if err = s.mayLease(); err != nil {
					return g, err
				}
				if err = b.crowded(write); err == nil {
					return b.grant(s, write).granted(), nil
				}
				again = soon()
			}
			if b.failed {
				return g, err
			}
		}
		if again == nil {
			return g, err
		}
		if b != nil {
			w.purpose = purpose{what: forBuffer, buffer: b.id}
			w.long = func(waited time.Duration) { s.noteLeaseLong(b, waited) }
		}
		if !w.wait(again.next()) {
			if b == nil && wait > 0 {
				err = situation.Of(mempool.ErrTimeout, "waited %v: %v", wait, err)
			}
			return g, w.cause(err)
		}
	}
}
