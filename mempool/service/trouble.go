package service

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// This file notes events on which an operator may have to act: refusals, long waits, and slow subscribers. Those of
// incomplete content are in sessionevents.go, those of lost memory in adopt.go.

// usualPatience is the default of [Config].Patience.
const usualPatience = 10 * time.Second

// refusal is the error of an allocation that found no room in a pool.
type refusal struct {
	error
	pool  *Pool
	bytes uint64
}

func (r *refusal) Unwrap() error { return r.error }

// Refused counts a request of the session that failed with [mempool.ErrLimit], and makes an event, but at most one in [eventlog.Rest] for
// each limit and each full pool; the event has the number of refusals since the last one. After a failed attempt, the server may wait and
// try the request again. So the server calls Refused only when it sends the error to the client.
func (s *Session) Refused(err error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	if full := (*refusal)(nil); errors.As(err, &full) {
		full.pool.noteFullLocked(s.rec, full.bytes, "and was refused: "+strings.TrimPrefix(full.Error(), mempool.ErrLimit.Error()+": "))
		return
	}
	if count, now := svc.eventLog.Refused(limitOf(err)); now {
		e := s.rec.About(mempool.LimitMet, "a request of %s was refused: %v", s.rec.Who(), err)
		e.Count = count
		svc.mu.note(e, nil)
	}
}

// Refused counts a connection that was refused because of a limit, and makes an event, as [Session.Refused] does.
func (s *Service) Refused(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if count, now := s.eventLog.Refused(limitOf(err)); now {
		s.mu.note(mempool.HistoryEvent{Kind: mempool.LimitMet, Count: count, Text: fmt.Sprintf("a connection was refused: %v", err)}, nil)
	}
}

// Impaired notes that the service goes on, but lacks something of its own; text says what, and what to do.
func (s *Service) Impaired(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.note(mempool.HistoryEvent{Kind: mempool.ServiceImpaired, Text: text}, nil)
}

// limitOf returns the name of the limit that an error is about; "": the limit has none.
func limitOf(err error) string {
	if limit := (*ledger.LimitError)(nil); errors.As(err, &limit) {
		return limit.Limit
	}
	return ""
}

// noteFullLocked notes an event that a session finds no room in the pool.
func (p *Pool) noteFullLocked(of *ledger.Session, size uint64, what string) {
	count, now := p.refused.Tell()
	if !now {
		return
	}
	e := of.About(mempool.PoolFull, "%s asked for %s in pool %q %s", of.Who(), bytesize.Text(size), p.rec.Info.Name, what)
	e.Bytes, e.Count = size, count
	if most, bytes := p.rec.LargestHolder(); most != nil {
		e.Text += fmt.Sprintf("; %s has the most of it, %s", most.Who(), bytesize.Text(bytes))
	}
	p.svc.mu.note(e, p.rec)
}

// noteRefusedLocked notes an event that the driver refused memory.
func (p *Pool) noteRefusedLocked(of *ledger.Session, size uint64, err error) {
	if of.Ended || !errors.Is(err, mempool.ErrOutOfMemory) && !errors.Is(err, mempool.ErrInternal) && !errors.Is(err, mempool.ErrUnavailable) {
		return // the request was cancelled, or was not valid
	}
	if count, now := p.failed.Tell(); now {
		e := of.About(mempool.DriverError, "%s asked for %s in pool %q, which could not be allocated: %v", of.Who(), bytesize.Text(size), p.rec.Info.Name, err)
		e.Bytes, e.Count = size, count
		p.svc.mu.note(e, p.rec)
	}
}

// noteLeaseLong notes an event that a session waits for a buffer that another session has leased. The caller holds s.mu.
func (s *Service) noteLeaseLong(waits *ledger.Session, b *ledger.Buffer, waited time.Duration) {
	of, how := b.Holder()
	if of == nil || of.Ended {
		return
	}
	count, now := s.sessionOf(of).blocking.Tell()
	if !now {
		return
	}
	e := of.About(mempool.LeaseLong, "%s has waited %v for buffer %d of pool %q, which %s has leased to be %s: end that session if it hangs", waits.Who(), waited,
		b.ID, b.Block.Pool.Info.Name, of.Who(), how)
	e.Buffer, e.Bytes, e.Took, e.Count = b.ID, b.Bytes, waited, count
	s.mu.note(e, b.Block.Pool)
}
