package service

import (
	"context"
	"time"

	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// buffer is one use of a block. Service.mu guards buffers. A service may have a million buffers, so this struct must stay small.
type buffer struct {
	id         uint64
	generation uint64
	block      *block
	tensor     *mempool.Tensor // shared with other buffers, and never changed
	bytes      uint64
	account    *account // counts the buffer's block

	writer  *Lease
	readers smallSet[*Lease]
	names   int32          // how many names hold the buffer
	frames  int32          // how many channels hold the buffer
	ready   fences         // the content is complete once these fences are reached
	event   *mempool.Event // came with the content
	failed  bool
	doubted bool     // the writer is gone, and a channel may have the buffer; if no channel has it, the buffer has failed
	counted BlockUse // the use that the current view has counted for the buffer's block
	made    uint32   // seconds after the service began
	changed signal
}

// checkContent marks the buffer as failed if its producer has said that the content failed. The caller holds Service.mu.
func (b *buffer) checkContent() {
	for _, t := range b.ready {
		if !b.failed && t.failed() {
			b.failWith(t.timeline.page.Reason(t.word))
		}
	}
}

// failWith marks the buffer as failed. The argument `reason` is the reason that the buffer's producer gave, or "" if the producer died. The
// caller holds Service.mu.
func (b *buffer) failWith(reason string) {
	b.failed = true
	if reason != "" {
		b.block.pool.svc.reasons[b.id] = reason
	}
}

// incomplete returns the error of a buffer that has failed. The caller holds Service.mu.
func (b *buffer) incomplete() error {
	if reason, ok := b.block.pool.svc.reasons[b.id]; ok {
		return situation.Of(mempool.ErrContentFailed, "buffer %d is incomplete; its producer says: %s", b.id, reason)
	}
	return situation.Of(mempool.ErrProducerDied, "buffer %d is incomplete: the process that wrote it died before finishing", b.id)
}

// available returns nil if the buffer can be leased now, ErrBusy if a later lease may be possible, and another error if no lease will
// ever be possible.
func (b *buffer) available(write bool) error {
	b.checkContent()
	switch {
	case b.failed:
		return b.incomplete()
	case b.doubted:
		return situation.Of(mempool.ErrBusy, "the session that wrote buffer %d has ended, and it is not known yet whether the buffer is complete", b.id)
	case b.writer != nil:
		return situation.Of(mempool.ErrBusy, "buffer %d is being written by session %d (pid %d)", b.id, b.writer.session.id, b.writer.session.peer.PID)
	case write && b.readers.len() > 0:
		return situation.Of(mempool.ErrBusy, "buffer %d has %s, which a write lease excludes: release them first, or write another buffer", b.id,
			count.Of(b.readers.len(), "read lease"))
	case write && b.frames > 0:
		return situation.Of(mempool.ErrBusy, "buffer %d is in a channel, whose consumers a write lease excludes: write another buffer", b.id)
	}
	return nil
}

// crowded returns ErrBusy if a lease would come with more than maxFences fences. The caller holds Service.mu.
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
	b.ready, b.block.fences = b.ready.incomplete(), b.block.fences.pending()
	if n() <= maxFences {
		return nil
	}
	return situation.Of(mempool.ErrBusy, "work with %d fences is under way on buffer %d, and a lease comes with at most %d", n(), b.id, maxFences)
}

// grant makes a lease. The caller holds Service.mu, and b.available has returned nil.
func (b *buffer) grant(s *Session, write bool) *Lease {
	svc := b.block.pool.svc
	s.noteUse()
	svc.lastLease++
	l := &Lease{id: svc.lastLease, session: s, buffer: b, write: write, began: uint32(time.Since(svc.began) / time.Second)}
	b.ready = b.ready.incomplete()
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
	svc.leases.set(l.id, l)
	b.block.pool.has.leases++
	return l
}

// recycleUnused recycles the buffer's block if nothing holds the buffer any more. The caller holds Service.mu.
func (b *buffer) recycleUnused() {
	b.changed.broadcast()
	if b.writer != nil || b.readers.len() > 0 || b.names > 0 || b.frames > 0 {
		return
	}
	b.block.fences = b.block.fences.union(b.ready).pending()
	p := b.block.pool
	p.svc.buffers.remove(b.id)
	p.has.buffers--
	if v := p.svc.view; v != nil && b.id <= v.passed {
		v.ended = append(v.ended, b)
	}
	delete(p.svc.reasons, b.id)
	p.used -= b.bytes
	delete(p.lent, b.block.id)
	b.account.remove(b.block.size)
	p.waiters.broadcast()
	p.recycle(b.block)
}

// lease leases the buffer that the function `find` returns. It waits until the session can lease the buffer, but not longer than the time
// `wait`. The argument `text` is the name that `find` searches for, or empty. lease calls `find` with Service.mu held. If `find` returns
// ErrNotFound, it may also return a signal. After this signal, lease calls `find` again.
func (s *Session) lease(ctx context.Context, text string, write bool, wait time.Duration, find func() (*buffer, *signal, error)) (g GrantedLease, err error) {
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
			w.purpose = purpose{what: forBuffer, pool: b.block.pool, buffer: b.id}
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
