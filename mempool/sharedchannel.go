package mempool

import (
	"errors"
	"time"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
)

// shared is a channel whose frames go through memory that its members share. The service sees none of them: it decides who takes
// part, and cleans up after members that left. It is guarded by Service.mu.
type shared struct {
	channel *channel
	host    *shmchannel.Host
	members map[uint64]*member // that have a slot, by id
	last    uint64             // the greatest id of a member
	// kept are buffers that the channel or a consumer may still need, of producers that left. One of these has published it.
	kept   map[*buffer][]*member
	tended bool      // somebody looks again and again whether what left is still needed
	rests  time.Time // until when nobody looks unless something has happened
	doubts doubts
}

var (
	sharedModes    = map[ChannelMode]shmchannel.Mode{Broadcast: shmchannel.Broadcast, WorkQueue: shmchannel.Queue}
	sharedPolicies = map[FullPolicy]shmchannel.Policy{Block: shmchannel.Block, Fail: shmchannel.Fail, DropOldest: shmchannel.DropOldest,
		Latest: shmchannel.Latest}
)

// newShared makes the memory of a channel. Service.mu is held.
//
// Errors: [ErrUnavailable], [ErrLimit] without file descriptors, [ErrOutOfMemory].
func newShared(ch *channel) (*shared, error) {
	svc := ch.pool.svc
	if err := timelinesWork(); err != nil { // the same seals are needed
		return nil, err
	}
	if err := svc.mayShare(); err != nil {
		return nil, err
	}
	spec := ch.info.ChannelSpec
	host, err := shmchannel.NewHost(shmchannel.Spec{Mode: sharedModes[spec.Mode], Capacity: spec.Capacity, Policy: sharedPolicies[spec.Full]})
	if err != nil {
		return nil, hostError("make the memory of a channel", err)
	}
	svc.sharedChannels++
	ch.pool.indexLent()
	return &shared{channel: ch, host: host, members: make(map[uint64]*member), kept: make(map[*buffer][]*member)}, nil
}

// unshared refuses what cannot be done with a channel whose frames go through shared memory.
func (ch *channel) unshared(what string) error {
	if ch.shared == nil {
		return nil
	}
	return situation(ErrInvalid, "channel %q is not %s: its frames go through shared memory: join it as a client, or make a channel whose frames go through the service", ch.info.Name, what)
}

// failed is an error of the channel's memory as one of this package. A channel whose memory contradicts itself ends at once.
// Service.mu is held.
func (sh *shared) failed(err error) error {
	name := sh.channel.info.Name
	switch {
	case err == nil:
		return nil
	case errors.Is(err, shmchannel.ErrCorrupt):
		sh.channel.pool.svc.log.Error("a channel ends because its shared memory was corrupted by a member", "channel", name, "error", err)
		sh.channel.close()
		sh.host.Destroy()
		return situation(ErrClosed, "channel %q is shut: %v", name, err)
	case errors.Is(err, shmchannel.ErrClosed):
		return situation(ErrClosed, "channel %q is shut", name)
	case errors.Is(err, shmchannel.ErrNoSlot):
		return situation(ErrLimit, "channel %q: %v", name, err)
	case errors.Is(err, shmchannel.ErrInvalid), errors.Is(err, shmchannel.ErrFile):
		return situation(ErrInvalid, "channel %q: %v", name, err)
	}
	return hostError("share the memory of a channel", err)
}

// logFailed is failed where nobody can be told. Service.mu is held.
func (sh *shared) logFailed(what string, err error) {
	if err = sh.failed(err); err != nil && !errors.Is(err, ErrClosed) {
		sh.channel.pool.svc.log.Error(what, "channel", sh.channel.info.Name, "error", err)
	}
}

// close lets nobody publish any more, once the channel is shut. Consumers get the frames that were published. Service.mu is held.
func (sh *shared) close() {
	sh.logFailed("a channel could not be closed", sh.host.Close())
	sh.tidy()
}

// destroy ends the channel at once. Service.mu is held.
func (sh *shared) destroy() {
	sh.host.Destroy()
	sh.tidy()
}

// lives says whether the channel has its memory. Service.mu is held.
func (sh *shared) lives() bool {
	return sh.channel.pool.svc.channelByID[sh.channel.info.ID] == sh.channel
}

// tidy frees what members that left do not need any more, and the channel if nobody has anything to get from it. Where something is
// still needed, it is looked at again. Service.mu is held.
func (sh *shared) tidy() {
	if !sh.lives() {
		return
	}
	begun := time.Now()
	sh.sweep()
	sh.letGo()
	sh.rests = time.Now().Add(lookRest * time.Since(begun))
	if sh.channel.shut && !sh.consumed() {
		sh.free()
		return
	}
	sh.tend()
}

// sweep takes the slots of members that nothing needs. Service.mu is held.
func (sh *shared) sweep() {
	gone, err := sh.host.Sweep(nil, sh.channel.pool.svc.reached)
	for _, m := range gone {
		sh.members[m.ID].forget()
	}
	if err != nil {
		sh.logFailed("members of a channel could not be taken out of its memory", err)
	}
}

// reached says whether nobody need wait for a ticket that stands in shared memory. Service.mu is held.
func (s *Service) reached(t shmchannel.Ticket) bool {
	own := s.timelines[t.Timeline]
	return own == nil || ticket{own, t.Word, t.Value}.over()
}

// consumed says whether somebody may still take frames, or use them. Service.mu is held.
func (sh *shared) consumed() bool {
	for _, m := range sh.members {
		if m.Role == shmchannel.ConsumerRole && m.entered {
			return true
		}
	}
	return false
}

// free gives the memory of a channel back that is shut and has no consumers. Producers that have mapped it find that it is destroyed, and
// have all their blocks back. Service.mu is held.
func (sh *shared) free() {
	sh.host.Destroy()
	sh.sweep()
	sh.letGo()
	for _, m := range sh.members {
		m.forget()
	}
	sh.channel.forget()
	sh.channel.pool.svc.sharedChannels--
	if err := sh.host.Free(); err != nil {
		sh.channel.pool.svc.log.Error("the memory of a channel could not be given back", "channel", sh.channel.info.Name, "error", err)
	}
}

// tendPause is how soon the memory of a channel is looked at again; later it is looked at less often, down to lingerRest.
const tendPause = time.Millisecond

// lookRest is how many times as long as a look takes, at least, the channel is left alone afterwards: the service does nothing else
// while it looks.
const lookRest = 10

// untidy counts what is left of members that left and may be freed without further notice. Service.mu is held.
func (sh *shared) untidy() (n int) {
	for _, m := range sh.members {
		if m.left && (m.said || m.Role == shmchannel.ProducerRole) {
			n++
		}
	}
	return n + len(sh.kept)
}

// tend looks at the channel again and again while something is left of members that left: nobody tells when consumers need it no more.
// Service.mu is held.
func (sh *shared) tend() {
	if sh.tended || sh.untidy() == 0 {
		return
	}
	sh.tended = true
	svc := sh.channel.pool.svc
	wait := max(tendPause, time.Until(sh.rests))
	svc.drains.Go(func() {
		for pause := tendPause; ; {
			select {
			case <-time.After(wait):
			case <-svc.closing: // all ends now
				return
			}
			svc.mu.Lock()
			if wait = time.Until(sh.rests); wait > 0 { // somebody else has looked
				svc.unlock()
				continue
			}
			before := sh.untidy()
			sh.tidy()
			left := sh.untidy()
			sh.tended = sh.lives() && left > 0
			again := sh.tended
			rest := time.Until(sh.rests)
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
