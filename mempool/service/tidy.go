package service

import (
	"time"

	"github.com/poolbridge/poolbridge/mempool/service/ledger"
	"github.com/poolbridge/poolbridge/mempool/service/streams"
)

// This file frees the slots and buffers of members that left a channel or whose session ended. It also frees closed channels that are over.

// lives says whether the channel still has its shared memory. The caller holds Service.mu.
func (ch *channel) lives() bool { return ch.svc.channelOf(ch.Channel) == ch }

// tidy frees the slots and buffers of members that left, if nothing needs them any more. It also frees the channel if the channel is over.
// If some slots or buffers are still needed, tidy calls tend, which calls tidy again later. The caller holds
// Service.mu.
func (ch *channel) tidy() {
	if !ch.lives() {
		return
	}
	begun := time.Now()
	ch.sweep()
	ch.releaseKept()
	ch.rests = time.Now().Add(lookRest * time.Since(begun))
	if ch.Over() {
		ch.free()
		return
	}
	ch.tend()
}

// sweep removes the members that left and whose slots nothing needs any more. The caller holds Service.mu.
func (ch *channel) sweep() {
	for _, m := range ch.Sweep() {
		ch.forget(m)
	}
}

// forget removes a member that has no slot any more. The caller holds Service.mu.
func (ch *channel) forget(m *ledger.Member) {
	svc := ch.svc
	if t := svc.ledger.RemoveMember(m); t != nil {
		svc.retire(t)
	}
	if s := svc.sessionOf(m.Session); s != nil && s.swept != nil && !s.rec.Consumes() {
		close(s.swept)
		s.swept = nil
	}
}

// releaseKept frees the buffers that the channel keeps, and that neither the channel nor its consumers need any more. The caller holds
// Service.mu.
func (ch *channel) releaseKept() {
	svc := ch.svc
	free, certain := ch.Unneeded()
	for _, b := range certain {
		svc.changedBuffer(b)
	}
	for _, b := range free {
		writer := ch.Kept[b][0].Session
		if ch.Release(b) {
			svc.breaks(writer, b)
			defer svc.noteBroken(writer)
		}
		svc.recycleUnused(b)
	}
}

// free frees the memory of a channel that is closed and has no consumers. The caller holds Service.mu.
func (ch *channel) free() {
	ch.Expire()
	ch.sweep()
	ch.releaseKept()
	for _, m := range ch.Members {
		ch.forget(m)
	}
	ch.svc.ledger.RemoveChannel(ch.Channel)
	delete(ch.svc.channels, ch.Info.ID)
	ch.Free()
}

// tendPause is the first pause of the goroutine of tend between two calls of tidy. If a call of tidy frees nothing, the next pause is
// longer, up to lingerRest.
const tendPause = time.Millisecond

// lookRest limits which part of the service's time the calls of tidy take. After each call of tidy, the goroutine of tend pauses for at
// least lookRest times the duration of the call. During a call of tidy, the service serves no session, because tidy needs Service.mu.
const lookRest = 10

// tend starts a goroutine that calls tidy again and again, until the channel has no leftovers or is freed. The service must check
// repeatedly, because consumers do not tell it when they have finished with a frame. The caller holds Service.mu.
func (ch *channel) tend() {
	if ch.tended || ch.Leftovers() == 0 {
		return
	}
	ch.tended = true
	svc := ch.svc
	wait := max(tendPause, time.Until(ch.rests))
	svc.drains.Go(func() {
		for pause := tendPause; ; {
			select {
			case <-time.After(wait):
			case <-svc.closing:
				return
			}
			svc.mu.Lock()
			if wait = time.Until(ch.rests); wait > 0 { // another goroutine has called tidy meanwhile
				svc.unlock()
				continue
			}
			before := ch.Leftovers()
			ch.tidy()
			left := ch.Leftovers()
			ch.tended = ch.lives() && left > 0
			again := ch.tended
			rest := time.Until(ch.rests)
			svc.unlock()
			if !again {
				return
			}
			pause = min(2*pause, lingerRest)
			if left < before {
				pause = tendPause
			}
			wait = max(pause, rest)
		}
	})
}

// watchChannels starts a goroutine that looks for slow subscribers, and for closed queues without consumers, as long as there are channels.
// The caller holds s.mu.
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
			for rec := range s.ledger.Channels.All() {
				ch := s.channelOf(rec)
				ch.Watch(s.patience)
				if !ch.Alone.IsZero() && ch.Over() {
					ch.tidy()
				}
			}
			s.watching = s.ledger.Channels.Len() > 0
			again := s.watching
			s.unlock()
			if !again {
				return
			}
		}
	})
}

// expel removes the members of an ended session from their channels. The result says which of the session's blocks these channels still
// need. The caller holds s.mu.
func (s *Service) expel(of *ledger.Session) (lent streams.Lending) {
	producers := make(map[*ledger.Channel][]*ledger.Member)
	for _, m := range of.SortedMembers() {
		s.channelOf(m.Channel).Leave(m, false)
		if m.Role == ledger.Producer && m.Entered {
			producers[m.Channel] = append(producers[m.Channel], m)
		}
	}
	for ch, members := range producers {
		lent = lent.Lend(s.channelOf(ch).Stream, members)
	}
	return lent
}

// tidyChannels calls tidy for each channel in which the session has members. The caller holds s.mu.
func (s *Service) tidyChannels(of *ledger.Session) {
	var last *ledger.Channel
	for _, m := range of.SortedMembers() {
		if m.Channel != last {
			last = m.Channel
			if ch := s.channelOf(last); ch != nil {
				ch.tidy()
			}
		}
	}
}

// vanish cleans up the channels of a session whose process is gone. The caller holds s.mu.
func (s *Service) vanish(of *ledger.Session) {
	for _, m := range of.SortedMembers() {
		s.channelOf(m.Channel).Gone(m)
	}
	s.tidyChannels(of)
}
