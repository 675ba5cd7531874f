package service

import (
	"context"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// AllocateRange makes a buffer for the tensor t of a part of the memory of the session's write lease, from the byte `base` of the lease's buffer
// on, and grants the session a write lease on it. The caller has used the memory before, so it need not wait for earlier users. Ranges may
// overlap. The memory stays in use until the lease's buffer and all its ranges are gone.
//
// Errors: [mempool.ErrReleased], [mempool.ErrInvalid] for a read lease, for the lease of a range, and for a part beyond the buffer,
// [mempool.ErrLimit], [mempool.ErrClosed] if the pool is being destroyed.
func (s *Session) AllocateRange(lease, base uint64, t mempool.Tensor) (g GrantedLease, err error) {
	n, err := t.Extent()
	if err != nil {
		return g, err
	}
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	l, err := s.rec.Lease(lease)
	if err != nil {
		return g, err
	}
	if err := l.MayDivide(base, n); err != nil {
		return g, err
	}
	svc.pools.of(l.Buffer.Block.Pool).demand.dividedBy(s)
	b := svc.ledger.AddRange(l.Buffer, base, s.rec.Describe(t), n, uint32(time.Since(svc.began)/time.Second))
	return s.grant(context.Background(), b, true), nil
}

// Returned says which of the buffers are no ranges of the lease's buffer any more. Before the session writes their memory, it waits for the
// fences: the lease then counts as waiting for them.
//
// Errors: [mempool.ErrReleased], [mempool.ErrInvalid] for a read lease, [mempool.ErrBusy] if there are too many fences.
func (s *Session) Returned(lease uint64, buffers []uint64) (gone []uint64, wait []mempool.Fence, err error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	l, err := s.rec.Lease(lease)
	if err != nil {
		return nil, nil, err
	}
	if !l.Write {
		return nil, nil, typed.Errorf(mempool.ErrInvalid, "lease %d is a read lease: only a write lease has ranges", l.ID)
	}
	if err := svc.crowded(l.Buffer, true); err != nil {
		return nil, nil, err
	}
	for _, id := range buffers {
		if b := ledger.Find(s.rec, svc.ledger.Buffers.Get(id)); b == nil || b.Whole() != l.Buffer {
			gone = append(gone, id)
		}
	}
	if len(gone) == 0 {
		return nil, nil, nil
	}
	block := l.Buffer.Block
	block.SetFences(svc.timelines.Pending(block.Fences))
	for _, t := range l.Await(block.Fences, svc.timelines.Over) {
		svc.retireLocked(t)
	}
	return gone, svc.timelines.PendingOrFailed(slices.Clone(block.Fences)), nil
}
