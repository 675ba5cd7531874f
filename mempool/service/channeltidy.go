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

// This file frees the slots and buffers of members that left a channel or whose session ended, and closed channels without consumers.

// lives says whether the channel has its memory. Service.mu is held.
func (ch *channel) lives() bool {
	return ch.pool.svc.channelByID.get(ch.info.ID) == ch
}

// tidy frees what members that left do not need any more, and the channel if it is closed and has no consumers. Where something is
// still needed, tend calls tidy again later. Service.mu is held.
func (ch *channel) tidy() {
	if !ch.lives() {
		return
	}
	begun := time.Now()
	ch.sweep()
	ch.releaseKept()
	ch.rests = time.Now().Add(lookRest * time.Since(begun))
	if ch.closed && !ch.consumed() {
		ch.free()
		return
	}
	ch.tend()
}

// sweep frees the slots of members that left and are not needed any more. Service.mu is held.
func (ch *channel) sweep() {
	gone, err := ch.host.Sweep(nil, ch.pool.svc.reached)
	for _, m := range gone {
		ch.members[m.ID].forget()
	}
	if err != nil {
		ch.logFailed("members of a channel could not be taken out of its memory", err)
	}
}

// reached says whether a fence that was read from shared memory needs no wait. Service.mu is held.
func (s *Service) reached(t shmchannel.Fence) bool {
	own := s.timelines[t.Timeline]
	return own == nil || fence{own, t.Word, t.Value}.over()
}

// consumed says whether a consumer may still take frames, or use them. Service.mu is held.
func (ch *channel) consumed() bool {
	for _, m := range ch.members {
		if m.Role == shmchannel.ConsumerRole && m.entered {
			return true
		}
	}
	return false
}

// free frees the memory of a channel that is closed and has no consumers. Producers that have mapped that memory read there that the channel
// is destroyed, and take back all their blocks. Service.mu is held.
func (ch *channel) free() {
	ch.host.Destroy()
	ch.sweep()
	ch.releaseKept()
	for _, m := range ch.members {
		m.forget()
	}
	ch.pool.svc.channelByID.remove(ch.info.ID)
	ch.pool.channels--
	if err := ch.host.Free(); err != nil {
		ch.note(mempool.HistoryEvent{Kind: mempool.DriverError, Text: fmt.Sprintf("the memory of channel %q could not be freed: %v", ch.info.Name, err)})
	}
}

// tendPause is the first pause of tend between two looks at a channel. Pauses grow to lingerRest while nothing changes.
const tendPause = time.Millisecond

// lookRest bounds the share of the time that tidy takes: after a look, tend pauses at least lookRest times as long as the look took,
// because no session is served during a look.
const lookRest = 10

// untidy counts the members that left and the buffers that tidy can free without another request. Service.mu is held.
func (ch *channel) untidy() (n int) {
	for _, m := range ch.members {
		if m.left && (m.said || m.Role == shmchannel.ProducerRole) {
			n++
		}
	}
	return n + len(ch.kept)
}

// tend starts a goroutine that calls tidy while something is left of members that left: consumers do not tell the service when they have
// finished with a frame. Service.mu is held.
func (ch *channel) tend() {
	if ch.tended || ch.untidy() == 0 {
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
			if wait = time.Until(ch.rests); wait > 0 { // another call of tidy came first
				svc.unlock()
				continue
			}
			before := ch.untidy()
			ch.tidy()
			left := ch.untidy()
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

// expel removes the members of a session that has ended, and returns what the channels need of its blocks. Service.mu is held.
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

// tidyChannels frees what the session's members do not need any more. Service.mu is held.
func (s *Session) tidyChannels() {
	tidied := make(map[*channel]struct{})
	for _, m := range s.sortedMembers() {
		if _, again := tidied[m.channel]; !again {
			tidied[m.channel] = struct{}{}
			m.channel.tidy()
		}
	}
}

// vanish cleans up the channels of a session whose process is gone. Service.mu is held.
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
