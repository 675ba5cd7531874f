package service

import (
	"context"
	"time"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// name keeps a published buffer alive and lets other sessions find the buffer. Service.mu guards names.
type name struct {
	text   string
	buffer *buffer
	uid    uint32   // the user who may replace or remove the name
	owner  *Session // the name is removed when this session ends; nil: the name stays
}

// Publish gives the buffer of a write lease a name, and makes the lease a read lease. The content may become complete only later: when p's
// fence is reached, or when p's event has happened. Publish does not wait until the content is complete, but readers of the buffer do.
//
// Errors: the errors of [Session.Release], [mempool.ErrInvalid] for a bad name, a tensor that does not fit, or a read lease,
// [mempool.ErrExists], [mempool.ErrDenied] if the name belongs to another user, [mempool.ErrLimit], [mempool.ErrClosed] if the pool is
// being destroyed.
func (s *Session) Publish(lease uint64, p mempool.Publication) error {
	if err := mempool.ValidateName("buffer", p.Name); err != nil {
		return err
	}
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	l, err := s.findLease(lease)
	if err != nil {
		return err
	}
	if p.Tensor != nil {
		if err := l.fits(*p.Tensor); err != nil {
			return err
		}
	}
	b := l.buffer
	switch {
	case !l.write:
		return situation.Of(mempool.ErrInvalid, "lease %d is a read lease: only a write lease can be published", l.id)
	case b.block.pool.closing:
		return situation.Of(mempool.ErrClosed, "pool %q is being destroyed", b.block.pool.info.Name)
	case p.Event != nil && p.Ready == nil:
		return situation.Of(mempool.ErrInvalid, "an interprocess event comes beside a fence, and this one comes without")
	}
	ready, err := l.ready(p.Ready)
	if err != nil {
		return err
	}
	old, err := claim(s, "buffer", p.Name, svc.names.get(p.Name))
	switch {
	case err != nil:
		return err
	case old == nil:
	case old.uid != s.peer.UID:
		return situation.Of(mempool.ErrDenied, "the name %q belongs to user %d", p.Name, old.uid)
	case !p.Replace && old.buffer != b:
		return situation.Of(mempool.ErrExists, "the name %q is taken; replace it explicitly, or unpublish it first", p.Name)
	}
	if old == nil {
		if err := s.mayName(); err != nil {
			return err
		}
	}
	n := &name{text: p.Name, buffer: b, uid: s.peer.UID}
	b.names++ // before old.remove, which could otherwise recycle the same buffer
	if old != nil {
		old.remove()
	}
	if !p.Keep {
		n.owner = s
		s.names[p.Name] = n
	}
	svc.names.set(p.Name, n)
	svc.namesOf.add(n.uid, 1)
	b.block.pool.has.names++
	if p.Tensor != nil {
		b.tensor = s.describe(*p.Tensor)
	}
	b.ready, b.event = ready, p.Event
	b.writer, l.write = nil, false
	b.readers.add(l)
	b.changed.broadcast()
	if a := svc.awaited[p.Name]; a != nil {
		a.broadcast()
	}
	return nil
}

// ready returns the fences at which the content of the lease's buffer is complete: the fence `*at`, and the fences of earlier writers that
// are not reached yet. The caller holds Service.mu.
func (l *Lease) ready(at *mempool.Fence) (fences, error) {
	var now fences
	if at != nil {
		t, err := l.session.fence(*at)
		if err != nil {
			return nil, err
		}
		now = fences{t}.incomplete()
	}
	l.buffer.ready = l.buffer.ready.pending()
	return l.buffer.ready.union(now), nil
}

// fits says whether t can describe the content of the lease's buffer.
func (l *Lease) fits(t mempool.Tensor) error {
	need, err := t.Extent()
	if err != nil {
		return err
	}
	if l.buffer.bytes < need {
		return situation.Of(mempool.ErrInvalid, "a %s of shape %v needs %s, buffer %d has %s", t.DType, t.Shape, bytesize.Text(need), l.buffer.id,
			bytesize.Text(l.buffer.bytes))
	}
	return nil
}

// remove removes the name, and recycles the name's buffer if nothing else holds the buffer. The caller holds Service.mu.
func (n *name) remove() {
	svc := n.buffer.block.pool.svc
	svc.names.remove(n.text)
	svc.namesOf.add(n.uid, -1)
	n.buffer.block.pool.has.names--
	if n.owner != nil {
		remove(&n.owner.names, &n.owner.most.names, n.text)
	}
	n.buffer.names--
	n.buffer.recycleUnused()
}

// Unpublish removes a name. The buffer stays as long as sessions have leases on it.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrDenied] if the name belongs to another user, [mempool.ErrClosed].
func (s *Session) Unpublish(text string) error {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	if err := s.alive(); err != nil {
		return err
	}
	n := find(s, svc.names.get(text))
	if n == nil {
		return s.unpublished(text)
	}
	if n.uid != s.peer.UID {
		return situation.Of(mempool.ErrDenied, "the name %q belongs to user %d", text, n.uid)
	}
	n.remove()
	return nil
}

func (s *Session) unpublished(text string) error {
	return situation.Of(mempool.ErrNotFound, "nothing is published as %q in a pool that user %d may use", text, s.peer.UID)
}

// Get leases the buffer that is published under a name. It waits until the name exists and until leases that exclude the new lease have
// ended; the argument `wait` limits this time.
//
// Errors: [mempool.ErrNotFound] (if `wait` is 0) or [mempool.ErrTimeout] if nothing is published under the name, [mempool.ErrBusy],
// [mempool.ErrContentFailed], [mempool.ErrProducerDied], [mempool.ErrDenied], the context's error.
func (s *Session) Get(ctx context.Context, text string, write bool, wait time.Duration) (GrantedLease, error) {
	if err := mempool.ValidateName("buffer", text); err != nil {
		return GrantedLease{}, err
	}
	svc := s.svc
	var a *awaited
	defer func() {
		if a != nil {
			a.leave()
		}
	}()
	return s.lease(ctx, text, write, wait, func() (*buffer, *signal, error) {
		if n := find(s, svc.names.get(text)); n != nil {
			return n.buffer, nil, nil
		}
		missing := s.unpublished(text)
		if wait <= 0 {
			return nil, nil, missing
		}
		if a == nil {
			a = svc.await(text)
		}
		return nil, &a.signal, missing
	})
}

// Lease leases a buffer by its id and generation.
//
// Errors: [mempool.ErrStale] for a buffer that the session does not see, or that has another generation, [mempool.ErrBusy], [mempool.ErrContentFailed], [mempool.ErrProducerDied], [mempool.ErrDenied], the context's error.
func (s *Session) Lease(ctx context.Context, id, generation uint64, write bool, wait time.Duration) (GrantedLease, error) {
	svc := s.svc
	return s.lease(ctx, "", write, wait, func() (*buffer, *signal, error) {
		b := find(s, svc.buffers.get(id))
		switch {
		case b == nil:
			return nil, nil, situation.Of(mempool.ErrStale, "there is no buffer %d in a pool that user %d may use: it is gone, or it never was there", id, s.peer.UID)
		case b.generation != generation:
			return nil, nil, situation.Of(mempool.ErrStale, "buffer %d is of generation %d, not %d", id, b.generation, generation)
		}
		return b, nil, nil
	})
}
