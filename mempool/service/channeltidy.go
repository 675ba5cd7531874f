package service

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

// This file frees the slots and buffers of members that left a channel or whose session ended. It also frees closed channels that are over.

// lives says whether the channel still has its shared memory. The caller holds Service.mu.
func (ch *channel) lives() bool {
	return ch.pool.svc.channelByID.Get(ch.info.ID) == ch
}

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
	if ch.over() {
		ch.free()
		return
	}
	ch.tend()
}

// sweep frees the slots of members that left, if nothing needs these slots any more. The caller holds Service.mu.
func (ch *channel) sweep() {
	gone, err := ch.host.Sweep(nil, ch.pool.svc.reached)
	for _, m := range gone {
		ch.members[m.ID].forget()
	}
	if err != nil {
		ch.logFailed("members of a channel could not be taken out of its memory", err)
	}
}

// reached says whether a fence from shared memory needs no wait: the fence is reached, or its timeline has ended. The caller holds
// Service.mu.
func (s *Service) reached(t shmchannel.Fence) bool {
	return s.over(mempool.Fence{Timeline: t.Timeline, Word: t.Word, Value: t.Value})
}

// over says whether the channel can be freed: it is closed, has no consumer and, if it is a queue, no frame waits any more or the frames
// have waited too long for a consumer. The caller holds Service.mu.
func (ch *channel) over() bool {
	if !ch.closed || ch.consumed() || !ch.drains() {
		ch.alone = time.Time{}
		return ch.closed && !ch.consumed()
	}
	if ch.alone.IsZero() {
		ch.alone = time.Now()
	}
	return time.Since(ch.alone) >= ch.patience()
}

// patience returns how long a closed queue waits for a consumer. The caller holds Service.mu.
func (ch *channel) patience() time.Duration {
	return time.Duration(ch.pool.svc.ledger.Limits.ClosedQueueSeconds) * time.Second
}

// consumed says whether the channel has a consumer that may still take frames or use frames. The caller holds Service.mu.
func (ch *channel) consumed() bool {
	for _, m := range ch.members {
		if m.Role == shmchannel.ConsumerRole && m.entered {
			return true
		}
	}
	return false
}

// free frees the memory of a channel that is closed and has no consumers. A producer that still maps the memory finds in it that the
// channel is destroyed. The producer then takes back all its blocks. The caller holds Service.mu.
func (ch *channel) free() {
	ch.destroy(fmt.Sprintf("after it was closed, it had no consumer for %v (--limit closed-queue-seconds=N changes this)", ch.patience()))
	ch.sweep()
	ch.releaseKept()
	for _, m := range ch.members {
		m.forget()
	}
	ch.pool.svc.channelByID.Remove(ch.info.ID)
	ch.pool.rec.Channels--
	if err := ch.host.Free(); err != nil {
		ch.note(mempool.HistoryEvent{Kind: mempool.DriverError, Text: fmt.Sprintf("the memory of channel %q could not be freed: %v", ch.info.Name, err)})
	}
}

// tendPause is the first pause of the goroutine of tend between two calls of tidy. If a call of tidy frees nothing, the next pause is
// longer, up to lingerRest.
const tendPause = time.Millisecond

// lookRest limits which part of the service's time the calls of tidy take. After each call of tidy, the goroutine of tend pauses for at
// least lookRest times the duration of the call. During a call of tidy, the service serves no session, because tidy needs Service.mu.
const lookRest = 10

// countLeftovers counts the buffers that the channel keeps, and the members that left and whose slots tidy can free without another request.
// The caller holds Service.mu.
func (ch *channel) countLeftovers() (n int) {
	for _, m := range ch.members {
		if m.left && (m.said || m.Role == shmchannel.ProducerRole) {
			n++
		}
	}
	return n + len(ch.kept)
}

// tend starts a goroutine that calls tidy again and again, until countLeftovers returns 0 or the channel is freed. The service must check
// repeatedly, because consumers do not tell it when they have finished with a frame. The caller holds Service.mu.
func (ch *channel) tend() {
	if ch.tended || ch.countLeftovers() == 0 {
		return
	}
	ch.tended = true
	svc := ch.pool.svc
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
			before := ch.countLeftovers()
			ch.tidy()
			left := ch.countLeftovers()
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

// expel removes the members of an ended session from their channels. For each channel that has a producer of the session, the result says
// which of the session's blocks the channel still needs. The caller holds Service.mu.
func (s *Session) expel() lending {
	producers := make(map[*channel][]*member)
	for _, m := range s.sortedMembers() {
		m.leave(false)
		if m.role() == Producer && m.entered {
			producers[m.channel] = append(producers[m.channel], m)
		}
	}
	lent := make(lending, len(producers))
	for ch, members := range producers {
		lent[ch] = ch.look(members)
	}
	return lent
}

// tidyChannels calls tidy for each channel in which the session has members. The caller holds Service.mu.
func (s *Session) tidyChannels() {
	tidied := make(map[*channel]struct{})
	for _, m := range s.sortedMembers() {
		if _, again := tidied[m.channel]; !again {
			tidied[m.channel] = struct{}{}
			m.channel.tidy()
		}
	}
}

// vanish cleans up the channels of a session whose process is gone. The caller holds Service.mu.
func (s *Session) vanish() {
	for _, m := range s.sortedMembers() {
		m.channel.logFailed("a member of a channel could not be taken out", m.channel.host.Gone(m.Member))
	}
	s.tidyChannels()
}

func (s *Session) sortedMembers() []*member {
	return slices.SortedFunc(maps.Keys(s.members), func(a, b *member) int {
		return cmp.Or(cmp.Compare(a.channel.info.ID, b.channel.info.ID), cmp.Compare(a.ID, b.ID))
	})
}
