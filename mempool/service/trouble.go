package service

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/mempool"
)

// This file notes what an operator may have to act on: refusals, waits that take long, and subscribers that are slow.

// usualPatience is after which time a wait takes long.
const usualPatience = 10 * time.Second

// refusal is the error of an allocation that found no room in a pool.
type refusal struct {
	error
	pool  *Pool
	bytes uint64
}

func (r *refusal) Unwrap() error { return r.error }

// Refused notes that a request of the session failed for good with [mempool.ErrLimit]. Only who answers it knows: an attempt that fails may
// be followed by a wait.
func (s *Session) Refused(err error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	if full := (*refusal)(nil); errors.As(err, &full) {
		s.notePoolFull(full.pool, full.bytes, "and was refused: "+strings.TrimPrefix(full.Error(), mempool.ErrLimit.Error()+": "))
		return
	}
	if count, now := svc.refusedBy(err).tell(); now {
		e := s.about(mempool.LimitMet, "a request of %s was refused: %v", s.who(), err)
		e.Count = count
		svc.note(e, nil)
	}
}

// Refused notes that a connection was refused because of a limit.
func (s *Service) Refused(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if count, now := s.refusedBy(err).tell(); now {
		s.note(mempool.HistoryEvent{Kind: mempool.LimitMet, Count: count, Text: fmt.Sprintf("a connection was refused: %v", err)}, nil)
	}
}

// refusedBy counts refusals by the limit that an error names. s.mu is held.
func (s *Service) refusedBy(err error) *gap {
	name := "" // of those that have none
	if limit := (*LimitError)(nil); errors.As(err, &limit) {
		name = limit.Limit
	}
	g := cmp.Or(s.refused[name], new(gap))
	s.refused[name] = g
	return g
}

// notePoolFull notes that the session finds no room. Service.mu is held.
func (s *Session) notePoolFull(p *Pool, size uint64, what string) {
	count, now := p.refused.tell()
	if !now {
		return
	}
	e := s.about(mempool.PoolFull, "%s asked for %s in pool %q %s", s.who(), bytesize.Text(size), p.info.Name, what)
	e.Bytes, e.Count = size, count
	if most, bytes := p.mostOf(); most != nil {
		e.Text += fmt.Sprintf("; %s has the most of it, %s", most.who(), bytesize.Text(bytes))
	}
	p.svc.note(e, p)
}

// mostOf is the session that has most of the pool; nil: none has anything. Service.mu is held.
func (p *Pool) mostOf() (most *Session, bytes uint64) {
	for _, s := range p.svc.sessions {
		if a := s.accounts[p]; a != nil && (a.bytes > bytes || a.bytes == bytes && bytes > 0 && s.id < most.id) {
			most, bytes = s, a.bytes
		}
	}
	return most, bytes
}

// noteFailed notes that the driver refused memory. Service.mu is held.
func (s *Session) noteFailed(p *Pool, size uint64, err error) {
	if s.ended || !errors.Is(err, mempool.ErrOutOfMemory) && !errors.Is(err, mempool.ErrInternal) && !errors.Is(err, mempool.ErrUnavailable) {
		return // it changed its mind, or asked for what it cannot have
	}
	if count, now := p.failed.tell(); now {
		e := s.about(mempool.DriverError, "%s asked for %s in pool %q, and there is no such memory: %v", s.who(), bytesize.Text(size), p.info.Name, err)
		e.Bytes, e.Count = size, count
		p.svc.note(e, p)
	}
}

// noteLeaseLong notes that the session waits for a buffer that others have leased. Service.mu is held.
func (s *Session) noteLeaseLong(b *buffer, waited time.Duration) {
	holder, how := b.holder()
	if holder == nil || holder.ended {
		return
	}
	count, now := holder.blocking.tell()
	if !now {
		return
	}
	e := holder.about(mempool.LeaseLong, "%s has waited %v for buffer %d of pool %q, which %s has leased to be %s: end that session if it hangs", s.who(), waited,
		b.id, b.block.pool.info.Name, holder.who(), how)
	e.Buffer, e.Bytes, e.Took, e.Count = b.id, b.bytes, waited, count
	s.svc.note(e, b.block.pool)
}

// holder is a session that has a lease on the buffer; nil: none has. Service.mu is held.
func (b *buffer) holder() (s *Session, how string) {
	if b.writer != nil {
		return b.writer.session, "written"
	}
	var oldest *Lease
	for l := range b.readers.all() {
		if oldest == nil || l.id < oldest.id {
			oldest = l
		}
	}
	if oldest == nil {
		return nil, ""
	}
	return oldest.session, "read"
}

// lag is since when a consumer is as far behind as its channel lets it.
type lag struct {
	since time.Time // zero: it is not
	told  bool
}

// watchChannels looks at channels for slow subscribers, again and again while there is one. s.mu is held.
func (s *Service) watchChannels() {
	if s.watching {
		return
	}
	s.watching = true
	s.drains.Go(func() {
		ticks := time.NewTicker(max(s.patience/4, time.Millisecond))
		defer ticks.Stop()
		for {
			select {
			case <-ticks.C:
			case <-s.closing:
				return
			}
			s.mu.Lock()
			for _, ch := range s.channelByID {
				ch.watch()
			}
			s.watching = len(s.channelByID) > 0
			again := s.watching
			s.mu.Unlock()
			if !again {
				return
			}
		}
	})
}

// lags looks at how many frames a consumer of a broadcast is behind, and says whether that is as far as its channel lets it.
// Service.mu is held.
func (m *member) lags() (frames uint64, most bool) {
	if m.role() != Consumer || !m.entered || m.left {
		return 0, false
	}
	frames = m.channel.host.Behind(m.Member)
	switch {
	case frames == 0 || frames+1 < uint64(m.channel.info.Capacity): // a frame that it has in hand takes up room, too
		m.behind = lag{}
		return frames, false
	case m.behind.since.IsZero():
		m.behind.since = time.Now()
	}
	return frames, true
}

// watch notes which subscribers of a broadcast are slow. Service.mu is held.
func (ch *channel) watch() {
	for _, m := range ch.members {
		frames, most := m.lags()
		if most && !m.behind.told && time.Since(m.behind.since) >= ch.pool.svc.patience {
			m.behind.told = true
			e := m.session.about(mempool.SubscriberSlow, "%s is %d frames behind in channel %q, which keeps %d: %s", m.session.who(), frames, ch.info.Name,
				ch.info.Capacity, consequence(ch.info.Full))
			e.Took = time.Since(m.behind.since)
			ch.note(e)
		}
	}
}

// consequence is what happens to a channel while a subscriber is slow.
func consequence(full mempool.FullPolicy) string {
	switch full {
	case mempool.Block:
		return "producers wait for it"
	case mempool.Fail:
		return "producers get errors"
	}
	return "it misses frames"
}
