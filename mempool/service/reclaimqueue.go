package service

import (
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/eventlog"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// freeAndUnlock frees the memory that waits for it, and unlocks s.mu, which writes the changes to the books.
func (s *Service) freeAndUnlock() {
	s.reclaim.flushLogged()
	s.mu.Unlock()
}

// flushLogged calls flush. It notes an error as an event, because no caller gets the error.
func (q *reclaimQueue) flushLogged() {
	if err := q.flush(); err != nil {
		q.svc.mu.note(mempool.HistoryEvent{Kind: mempool.DriverError, Text: notGivenBack(err)}, nil)
	}
}

func notGivenBack(err error) string {
	return fmt.Sprintf("memory could not be given back, and counts as held until it can: %v", err)
}

// flush frees everything in the queue. The caller holds Service.mu; flush releases the mutex for the driver calls.
func (q *reclaimQueue) flush() error {
	var errs []error
	for s := q.svc; len(q.blocks) > 0 || len(q.pools) > 0 || len(q.timelines) > 0; {
		d := *q
		*q = reclaimQueue{svc: s}
		free := make([]func() error, len(d.blocks))
		for i, b := range d.blocks {
			memory := s.memoryOf(b)
			free[i] = memory.Free
			if b.Pool.Closing { // the service will not try again later
				free[i] = func() error { return mempool.Free(memory.Allocation) }
			}
		}
		s.mu.Unlock()
		failed := make([]error, len(d.blocks))
		for i, b := range d.blocks {
			if err := s.eventLog.Called(eventlog.FreeBlock, free[i]()); err != nil {
				failed[i] = fmt.Errorf("block %d of pool %q, %s: %w", b.ID, b.Pool.Info.Name, bytesize.Text(b.Size), err)
			}
		}
		for _, p := range d.pools {
			if p.backing == nil {
				continue
			}
			if err := s.eventLog.Called(eventlog.CloseBacking, p.backing.Close()); err != nil {
				errs = append(errs, fmt.Errorf("pool %q: %w", p.rec.Info.Name, err))
			}
		}
		for _, free := range d.timelines {
			errs = append(errs, free())
		}
		s.mu.Lock()
		for _, p := range d.pools {
			for _, b := range s.ledger.RemovePool(p.rec) {
				s.blocks.Remove(b.ID) // the backing has freed it
				p.letGoLocked(b)
			}
			delete(s.pools.all, p.rec.Info.ID)
			s.descriptors.drop(p.rec.File)
			close(p.closed)
		}
		for i, b := range d.blocks {
			s.pools.of(b.Pool).freed(b, failed[i])
		}
		errs = append(errs, failed...)
	}
	return errors.Join(errs...)
}

// queueFree adds b to the reclaim queue as soon as no work on b is under way. At the time of the call, no session maps b, and b is counted as
// held. The caller holds Service.mu.
func (p *Pool) queueFree(b *ledger.Block) {
	if !p.svc.timelines.Quiet(b) {
		b.Become(ledger.BlockDraining)
		p.svc.draining.await(b, func() { p.queueFree(b) })
		return
	}
	b.Become(ledger.BlockFreeing)
	p.queued++
	p.svc.reclaim.blocks = append(p.svc.reclaim.blocks, b)
}

// freed notes whether b was freed. A block that could not be freed stays counted as held. The service tries again to free the block when
// the pool needs room and when the pool is destroyed. The caller holds Service.mu.
func (p *Pool) freed(b *ledger.Block, err error) {
	p.returned.broadcast()
	if err != nil {
		b.NotFreed()
	} else {
		b.Freed()
		p.svc.blocks.Remove(b.ID)
		p.letGoLocked(b)
		p.room.broadcast()
		p.relief.broadcast()
	}
	p.closeIfEmpty()
}

// closeIfEmpty is for a pool that is being destroyed. If the pool has no blocks any more, closeIfEmpty adds the pool to the reclaim queue.
// It does not count blocks that the driver failed to free: the backing frees these blocks when the service closes the backing. The caller holds
// Service.mu.
func (p *Pool) closeIfEmpty() {
	svc := p.svc
	if p.rec.Closing && !p.rec.Closed && p.rec.Gone() {
		p.rec.Closed = true
		svc.ledger.Touch(p.rec)
		svc.reclaim.pools = append(svc.reclaim.pools, p)
	}
}
