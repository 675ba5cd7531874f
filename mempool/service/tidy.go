package service

import (
	"time"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
	"github.com/poolbridge/poolbridge/mempool/service/streams"
)

// This file frees the seats and buffers of members that left a channel or whose session ended. It also frees closed channels that are over.

// livesLocked says whether the channel still has its shared memory.
func (ch *channel) livesLocked() bool { return ch.svc.channels.of(ch.Channel) == ch }

// tidyLocked frees the seats and buffers of members that left, if nothing needs them any more. It also frees the channel if the channel is
// over. If some seats or buffers are still needed, tidyLocked calls tendLocked, which calls tidyLocked again later.
func (ch *channel) tidyLocked() {
	if !ch.livesLocked() {
		return
	}
	begun := time.Now()
	ch.sweepLocked()
	ch.releaseRetainedLocked()
	ch.rests = time.Now().Add(lookRest * time.Since(begun))
	if ch.Closed {
		ch.joined.broadcast()
	}
	if ch.Over() {
		ch.freeLocked()
		return
	}
	ch.tendLocked()
}

// sweepLocked removes the members that left and whose seats nothing needs any more.
func (ch *channel) sweepLocked() {
	for _, m := range ch.Sweep() {
		ch.forgetLocked(m)
	}
}

// forgetLocked removes a member that has no seat any more.
func (ch *channel) forgetLocked(m *ledger.Member) {
	svc := ch.svc
	svc.descriptors.drop(m.File)
	if t := svc.ledger.RemoveMember(m); t != nil {
		svc.retireLocked(t)
	}
	if s := svc.sessionOf(m.Session); s != nil && s.swept != nil && !s.rec.Consumes() {
		close(s.swept)
		s.swept = nil
	}
}

// leaveLocked removes a member, as [streams.Stream.Leave] does. If producers may wait for the member's file, leaveLocked tells them that the
// member has left.
func (ch *channel) leaveLocked(m *ledger.Member, how mempool.SessionEnding) {
	ch.Leave(m, how)
	if !m.Reserved {
		return
	}
	for _, p := range ch.MembersOf(Producer) {
		if p.Entered && !p.Left {
			ch.svc.sessionOf(p.Session).tellLocked(MemberCame{Channel: ch.Info.ID, Role: Consumer, Seat: m.Seat, Member: m.ID})
		}
	}
}

// releaseRetainedLocked frees the buffers that the channel retains, and that neither the channel nor its consumers need any more.
func (ch *channel) releaseRetainedLocked() {
	svc := ch.svc
	free, certain := ch.Unneeded()
	for _, b := range certain {
		svc.changed.broadcast(b)
	}
	for _, b := range free {
		writer := ch.Retained[b][0].Session
		if ch.Release(b) {
			svc.broken.add(writer, b, svc.changed[b.ID] != nil)
			defer svc.broken.note(writer, &svc.mu)
		}
		svc.recycleUnused(b)
	}
}

// freeLocked frees the memory of a channel that is closed and has no consumers.
func (ch *channel) freeLocked() {
	ch.Expire()
	ch.sweepLocked()
	ch.releaseRetainedLocked()
	for _, m := range ch.Members {
		ch.forgetLocked(m)
	}
	ch.svc.ledger.RemoveChannel(ch.Channel)
	delete(ch.svc.channels.all, ch.Info.ID)
	ch.svc.descriptors.drop(ch.RosterFile)
	ch.svc.descriptors.drop(ch.SequencerFile)
	ch.Free()
}

// tendPause is the first pause of the goroutine of tendLocked between two calls of tidyLocked. If a call of tidyLocked frees nothing, the
// next pause is longer, up to lingerRest.
const tendPause = time.Millisecond

// lingerRest is the longest pause between two checks of the timeline of an ended session while the session's process lives. It is also the
// longest pause in the method tendLocked of a channel.
const lingerRest = time.Second

// lookRest limits which part of the service's time the calls of tidyLocked take. After each call of tidyLocked, the goroutine of tendLocked
// pauses for at least lookRest times the duration of the call. During a call of tidyLocked, the service serves no session, because tidy needs
// Service.mu.
const lookRest = 10

// tendLocked starts a goroutine that calls tidyLocked again and again, until the channel has no leftovers or is freed. The service must check
// repeatedly, because consumers do not tell it when they have finished with a frame.
func (ch *channel) tendLocked() {
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
			if wait = time.Until(ch.rests); wait > 0 { // another goroutine has called tidyLocked meanwhile
				svc.freeAndUnlock()
				continue
			}
			before := ch.Leftovers()
			ch.tidyLocked()
			left := ch.Leftovers()
			ch.tended = ch.livesLocked() && left > 0
			again := ch.tended
			rest := time.Until(ch.rests)
			svc.freeAndUnlock()
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

// watchLocked starts a goroutine that looks for slow subscribers, for consumers that do not enter, and for closed queues without consumers,
// as long as there are channels.
func (cs *channels) watchLocked() {
	if cs.watching {
		return
	}
	cs.watching = true
	cs.svc.drains.Go(func() {
		ticks := time.NewTicker(max(cs.svc.patience/4, time.Millisecond))
		defer ticks.Stop()
		for again := true; again; {
			select {
			case <-ticks.C:
			case <-cs.svc.closing:
				return
			}
			cs.svc.mu.Lock()
			for rec := range cs.svc.ledger.Channels.All() {
				ch := cs.of(rec)
				ch.Watch(cs.svc.patience)
				for _, m := range ch.Absent(cs.svc.patience) {
					ch.leaveLocked(m, mempool.SessionFailed)
					ch.tidyLocked()
				}
				if !ch.Alone.IsZero() && ch.Over() {
					ch.tidyLocked()
				}
			}
			again = cs.svc.ledger.Channels.Len() > 0
			cs.watching = again
			cs.svc.freeAndUnlock()
		}
	})
}

// expelLocked removes the members of an ended session from their channels. The result says which of the session's blocks these channels
// still need.
func (cs *channels) expelLocked(of *ledger.Session, how mempool.SessionEnding) (lent streams.Lending) {
	producers := make(map[*ledger.Channel][]*ledger.Member)
	for _, m := range of.SortedMembers() {
		cs.of(m.Channel).leaveLocked(m, how)
		if m.Role == ledger.Producer && m.Entered {
			producers[m.Channel] = append(producers[m.Channel], m)
		}
	}
	for ch, members := range producers {
		lent = lent.Lend(cs.of(ch).Stream, members)
	}
	return lent
}

// tidyLocked tidies each channel in which the session has members.
func (cs *channels) tidyLocked(of *ledger.Session) {
	var last *ledger.Channel
	for _, m := range of.SortedMembers() {
		if m.Channel != last {
			last = m.Channel
			if ch := cs.of(last); ch != nil {
				ch.tidyLocked()
			}
		}
	}
}

// endLocked ends the channels of a pool; why says what happened.
func (cs *channels) endLocked(of *ledger.Pool, why string) {
	for rec := range cs.svc.ledger.Channels.All() {
		if rec.Pool == of {
			cs.of(rec).End(why)
			cs.of(rec).tidyLocked()
		}
	}
}
