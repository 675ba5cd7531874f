package service

import (
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

// This file frees what members that left a channel do not need any more, and channels that nobody needs.

// lives says whether the channel has its memory. Service.mu is held.
func (ch *channel) lives() bool {
	return ch.pool.svc.channelByID[ch.info.ID] == ch
}

// tidy frees what members that left do not need any more, and the channel if nobody has anything to get from it. Where something is
// still needed, it is looked at again. Service.mu is held.
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

// sweep takes the slots of members that nothing needs. Service.mu is held.
func (ch *channel) sweep() {
	gone, err := ch.host.Sweep(nil, ch.pool.svc.reached)
	for _, m := range gone {
		ch.members[m.ID].forget()
	}
	if err != nil {
		ch.logFailed("members of a channel could not be taken out of its memory", err)
	}
}

// reached says whether nobody need wait for a fence that stands in shared memory. Service.mu is held.
func (s *Service) reached(t shmchannel.Fence) bool {
	own := s.timelines[t.Timeline]
	return own == nil || fence{own, t.Word, t.Value}.over()
}

// consumed says whether somebody may still take frames, or use them. Service.mu is held.
func (ch *channel) consumed() bool {
	for _, m := range ch.members {
		if m.Role == shmchannel.ConsumerRole && m.entered {
			return true
		}
	}
	return false
}

// free gives the memory of a channel back that is closed and has no consumers. Producers that have mapped it find that it is destroyed, and
// have all their blocks back. Service.mu is held.
func (ch *channel) free() {
	ch.host.Destroy()
	ch.sweep()
	ch.releaseKept()
	for _, m := range ch.members {
		m.forget()
	}
	delete(ch.pool.svc.channelByID, ch.info.ID)
	ch.pool.channels--
	if err := ch.host.Free(); err != nil {
		ch.note(mempool.HistoryEvent{Kind: mempool.DriverError, Text: fmt.Sprintf("the memory of channel %q could not be given back: %v", ch.info.Name, err)})
	}
}

// tendPause is how soon the memory of a channel is looked at again; later it is looked at less often, down to lingerRest.
const tendPause = time.Millisecond

// lookRest is how many times as long as a look takes, at least, the channel is left alone afterwards: the service does nothing else
// while it looks.
const lookRest = 10

// untidy counts what is left of members that left and may be freed without further notice. Service.mu is held.
func (ch *channel) untidy() (n int) {
	for _, m := range ch.members {
		if m.left && (m.said || m.Role == shmchannel.ProducerRole) {
			n++
		}
	}
	return n + len(ch.kept)
}

// tend looks at the channel again and again while something is left of members that left: nobody tells when consumers need it no more.
// Service.mu is held.
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
			case <-svc.closing: // all ends now
				return
			}
			svc.mu.Lock()
			if wait = time.Until(ch.rests); wait > 0 { // somebody else has looked
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
