package service

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// This file is how sessions of the service's own process order their work, and how those wait that understand no fences.

// Clock is the timeline of a session of this process, for work that leases do not do themselves.
//
// Errors: [mempool.ErrUnavailable], [mempool.ErrClosed].
func (s *Session) Clock() (*mempool.Clock, error) {
	s.clockMu.Lock()
	defer s.clockMu.Unlock()
	if s.clock != nil {
		return s.clock, nil
	}
	id, _, err := s.Timeline()
	if err != nil {
		return nil, err
	}
	if err := s.SealTimeline(); err != nil {
		return nil, err
	}
	s.clock = mempool.NewClock(id, s.timeline.page)
	return s.clock, nil
}

// page is the timeline with an id. A lease that waits for a fence of it keeps it.
func (s *Session) page(_ context.Context, id uint64) (*mempool.Page, error) {
	s.svc.mu.Lock()
	defer s.svc.mu.Unlock()
	t := s.svc.timelines[id]
	if t == nil {
		return nil, situation.Of(mempool.ErrStale, "timeline %d is gone", id)
	}
	return t.page, nil
}

// arrange prepares the order of a lease of this process. Service.mu is held.
func (l *Lease) arrange() {
	s := l.session
	l.order = &mempool.Order{Pages: s.page, Clock: func(context.Context) (*mempool.Clock, error) { return s.Clock() }}
	l.order.Begin(l.wait.plain(), !l.write)
	if handle, alone := l.buffer.event.told(); handle != nil {
		l.order.Expect(handle, alone, l.buffer.block.pool.info.Device.UUID)
	}
}

// finish says in its queues where the work of a session of this process ends, before it does. It returns the clock by which
// that can be waited for; nil if there is nothing to wait for.
func (s *Session) finish() *mempool.Clock {
	s.svc.mu.Lock()
	var leases []*Lease
	if !s.ended {
		leases = slices.Collect(maps.Values(s.leases))
	}
	s.svc.mu.Unlock()
	var errs []error
	for _, l := range leases {
		_, err := l.fences()
		errs = append(errs, err, l.finish())
	}
	for _, err := range errs {
		if !errors.Is(err, mempool.ErrReleased) { // another goroutine released the lease just now
			s.unfinished(err)
		}
	}
	s.clockMu.Lock()
	defer s.clockMu.Unlock()
	if s.clock == nil || errors.Is(s.clock.Quiesce(0), mempool.ErrTimeout) {
		return s.clock
	}
	s.clock.Close()
	return nil
}

// quiesce waits for the work of an ended session of this process.
func (s *Session) quiesce(c *mempool.Clock) {
	if err := c.Quiesce(mempool.OrderLimit); !errors.Is(err, mempool.ErrClosed) {
		s.unfinished(err)
	}
	c.Close()
}

func (s *Session) unfinished(err error) {
	if err != nil {
		s.svc.log.Error("a session ended before its work was done", "session", s.id, "error", err)
	}
}

// AwaitWork returns when nothing has to be waited for before the memory of the lease is used: for sessions that understand
// no fences.
//
// Errors: [mempool.ErrBusy] if that takes longer than limit, [mempool.ErrReleased], [mempool.ErrProducerDied], the context's.
func (l *Lease) AwaitWork(ctx context.Context, limit time.Duration) error {
	svc := l.session.svc
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for pause := drainPause; ; pause = min(2*pause, drainRest) {
		svc.mu.Lock()
		left, ended, failed := len(l.wait.plain()), l.ended, l.buffer.failed
		svc.mu.Unlock()
		switch {
		case ended:
			return l.released()
		case failed && !l.write:
			return situation.Of(mempool.ErrProducerDied, "buffer %d is incomplete: the process that wrote it died before finishing", l.buffer.id)
		case left == 0:
			return nil
		}
		select {
		case <-time.After(pause): // streams tell nobody when they write a word
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return situation.Of(mempool.ErrBusy, "work on buffer %d is under way after %v", l.buffer.id, limit)
		}
	}
}
