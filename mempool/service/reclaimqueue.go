package service

import (
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/journal"
)

// reclaimQueue has the memory that the service is about to free. Requests add memory to the queue with Service.mu held. When a request
// has completed its change of the service's state, flush frees the queued memory without the mutex.
type reclaimQueue struct {
	blocks []*block // in state blockFreeing, counted as held
	pools  []*Pool  // pools that have no blocks any more, except stuck ones
	// timelines are the timelines that no session can ask for any more.
	timelines []*timeline
}

// unlock calls flushLogged and unlocks s.mu.
func (s *Service) unlock() {
	s.flushLogged()
	s.mu.Unlock()
}

// flushLogged calls flush. It notes an error as an event, because no caller gets the error.
func (s *Service) flushLogged() {
	if err := s.flush(); err != nil {
		s.note(mempool.HistoryEvent{Kind: mempool.DriverError, Text: notGivenBack(err)}, nil)
	}
}

func notGivenBack(err error) string {
	return fmt.Sprintf("memory could not be given back, and counts as held until it can: %v", err)
}

// flush frees everything in the reclaim queue. The caller holds s.mu; flush releases the mutex for the driver calls.
func (s *Service) flush() error {
	var errs []error
	for len(s.reclaim.blocks) > 0 || len(s.reclaim.pools) > 0 || len(s.reclaim.timelines) > 0 {
		d := s.reclaim
		s.reclaim = reclaimQueue{}
		free := make([]func() error, len(d.blocks))
		for i, b := range d.blocks {
			free[i] = b.mem.Free
			if b.pool.closing { // the service will not try again later
				free[i] = func() error { return mempool.Free(b.mem) }
			}
		}
		s.mu.Unlock()
		failed := make([]error, len(d.blocks))
		for i, b := range d.blocks {
			if err := s.journal.Called(journal.FreeBlock, free[i]()); err != nil {
				failed[i] = fmt.Errorf("block %d of pool %q, %s: %w", b.id, b.pool.info.Name, bytesize.Text(b.size), err)
			}
		}
		for _, p := range d.pools {
			if err := s.journal.Called(journal.CloseArena, p.arena.Close()); err != nil {
				errs = append(errs, fmt.Errorf("pool %q: %w", p.info.Name, err))
			}
		}
		for _, t := range d.timelines {
			errs = append(errs, t.close())
		}
		s.mu.Lock()
		for _, p := range d.pools {
			delete(s.poolByID, p.info.ID)
			s.poolsOf.add(p.uid, -1)
			for session := range s.sessions.all() {
				delete(session.accounts, p)
			}
			close(p.closed)
		}
		for i, b := range d.blocks {
			b.pool.freed(b, failed[i])
		}
		errs = append(errs, failed...)
	}
	return errors.Join(errs...)
}

// free adds b to the reclaim queue as soon as no work on b is under way. At the time of the call, no session maps b, and b is counted as
// held. The caller holds Service.mu.
func (p *Pool) free(b *block) {
	if !b.quiet() {
		b.state = blockDraining
		p.charge(b)
		p.svc.drain(b, func() { p.free(b) })
		return
	}
	b.state = blockFreeing
	p.queued++
	p.charge(b)
	p.svc.reclaim.blocks = append(p.svc.reclaim.blocks, b)
}

// freed notes whether b was freed. A block that could not be freed stays counted as held. The service tries again to free the block when
// the pool needs room and when the pool is destroyed. The caller holds Service.mu.
func (p *Pool) freed(b *block, err error) {
	p.returned.broadcast()
	if err != nil {
		b.state = blockStuck
		p.stuck = append(p.stuck, b)
	} else {
		b.state = blockFreed
		p.reserved -= b.size
		p.held -= b.size
		p.blocks--
		p.waiters.broadcast()
		p.relief.broadcast()
	}
	p.closeIfEmpty()
}

// closeIfEmpty is for a pool that is being destroyed. If the pool has no blocks any more, closeIfEmpty adds the pool to the reclaim queue.
// It does not count blocks that the driver failed to free: the arena frees these blocks when the service closes the arena. The caller holds
// Service.mu.
func (p *Pool) closeIfEmpty() {
	svc := p.svc
	if p.closing && !p.ending && p.blocks == len(p.stuck) {
		p.ending = true
		svc.reclaim.pools = append(svc.reclaim.pools, p)
	}
}
