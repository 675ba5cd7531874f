package mempool

import (
	"context"
	"errors"
	"time"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
)

// channel is a named queue of buffers. Its frames go through memory that its members share: the service sees none of them. It decides
// who takes part, and cleans up after members that left. It is guarded by Service.mu, except info, pool and uid, which never change.
type channel struct {
	info ChannelInfo
	pool *Pool
	uid  uint32 // of the user who made it

	shut    bool // no producer publishes any more
	host    *shmchannel.Host
	members map[uint64]*member // that have a slot, by id
	last    uint64             // the greatest id of a member
	// kept are buffers that the channel or a consumer may still need, of producers that left. One of these has published it.
	kept   map[*buffer][]*member
	tended bool      // a goroutine looks again and again whether what left is still needed
	rests  time.Time // until when nothing is looked at unless something has happened
	doubts doubts
}

var (
	hostModes    = map[ChannelMode]shmchannel.Mode{Broadcast: shmchannel.Broadcast, WorkQueue: shmchannel.Queue}
	hostPolicies = map[FullPolicy]shmchannel.Policy{Block: shmchannel.Block, Fail: shmchannel.Fail, DropOldest: shmchannel.DropOldest,
		Latest: shmchannel.Latest}
)

// MakeChannel makes a channel, or finds the one that is just like it.
//
// Errors: [ErrInvalid], [ErrExists] if there is one of that name that is not like it, [ErrNotFound] and [ErrDenied] for the
// pool, [ErrLimit], [ErrOutOfMemory], [ErrUnavailable] where the kernel has no sealed files, [ErrClosed].
func (s *Session) MakeChannel(spec ChannelSpec) (ChannelInfo, error) {
	spec = spec.filled()
	if err := spec.Validate(); err != nil {
		return ChannelInfo{}, err
	}
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	p, err := s.pool(spec.Pool)
	if err != nil {
		return ChannelInfo{}, err
	}
	if old := svc.channels[spec.Name]; old != nil {
		if old.info.ChannelSpec != spec {
			return ChannelInfo{}, situation(ErrExists, "there is a channel %q already, in pool %q, with mode %s, capacity %d and policy %s",
				spec.Name, old.pool.info.Name, old.info.Mode, old.info.Capacity, old.info.Full)
		}
		return old.info, nil
	}
	if p.closing {
		return ChannelInfo{}, p.ended()
	}
	if p.channels >= MaxChannels {
		return ChannelInfo{}, situation(ErrLimit, "pool %q has %d channels, and no more at a time", p.info.Name, p.channels)
	}
	ch, err := p.newChannel(spec, s.peer.UID)
	if err != nil {
		return ChannelInfo{}, err
	}
	svc.channels[spec.Name] = ch
	svc.channelByID[ch.info.ID] = ch
	svc.channeled.broadcast()
	return ch.info, nil
}

// FindChannel finds a channel by name, and waits up to wait for it to appear.
//
// Errors: [ErrNotFound] (with wait 0) or [ErrTimeout], [ErrDenied], [ErrClosed], the context's.
func (s *Session) FindChannel(ctx context.Context, name string, wait time.Duration) (ChannelInfo, error) {
	if err := validateName("channel", name); err != nil {
		return ChannelInfo{}, err
	}
	w := s.newWaiter(ctx, wait)
	defer w.stop()
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	for {
		if err := s.alive(); err != nil {
			return ChannelInfo{}, err
		}
		ch := svc.channels[name]
		if ch != nil {
			if !ch.pool.access.Allows(s.peer) {
				return ChannelInfo{}, ch.pool.denied(s.peer)
			}
			return ch.info, nil
		}
		err := situation(ErrNotFound, "there is no channel %q", name)
		if wait > 0 {
			err = situation(ErrTimeout, "waited %v: there is no channel %q", wait, name)
		}
		if !w.wait(svc.channeled.next()) {
			return ChannelInfo{}, w.cause(err)
		}
	}
}

// channel finds a channel by id that the session may use and that is not shut. Service.mu is held.
func (s *Session) channel(id uint64) (*channel, error) {
	if err := s.alive(); err != nil {
		return nil, err
	}
	ch := s.svc.channelByID[id]
	switch {
	case ch == nil && (id == 0 || id > s.svc.lastChannel):
		return nil, situation(ErrNotFound, "there is no channel %d", id)
	case ch == nil:
		return nil, situation(ErrClosed, "channel %d is shut", id)
	case !ch.pool.access.Allows(s.peer):
		return nil, ch.pool.denied(s.peer)
	case ch.shut:
		return nil, situation(ErrClosed, "channel %q is shut", ch.info.Name)
	}
	return ch, nil
}

// newChannel makes a channel of the pool for a user. Service.mu is held.
//
// Errors: [ErrUnavailable], [ErrLimit] without file descriptors, [ErrOutOfMemory].
func (p *Pool) newChannel(spec ChannelSpec, uid uint32) (*channel, error) {
	svc := p.svc
	if err := timelinesWork(); err != nil { // the same seals are needed
		return nil, err
	}
	if err := svc.mayMakeChannel(); err != nil {
		return nil, err
	}
	host, err := shmchannel.NewHost(shmchannel.Spec{Mode: hostModes[spec.Mode], Capacity: spec.Capacity, Policy: hostPolicies[spec.Full]})
	if err != nil {
		return nil, hostError("make the memory of a channel", err)
	}
	svc.lastChannel++
	p.channels++
	p.indexLent()
	return &channel{info: ChannelInfo{ID: svc.lastChannel, ChannelSpec: spec}, pool: p, uid: uid, host: host,
		members: make(map[uint64]*member), kept: make(map[*buffer][]*member)}, nil
}

// anyChannel finds a channel by id that the session may use, shut or not. Service.mu is held.
func (s *Session) anyChannel(id uint64) (*channel, error) {
	if ch := s.svc.channelByID[id]; ch != nil && !s.ended && ch.pool.access.Allows(s.peer) {
		return ch, nil
	}
	return s.channel(id)
}

// ShutChannel closes a channel: nothing more can be published, and the name is free. Its members find the end in the memory that they
// share: consumers get the frames that were published, and then the end.
//
// Errors: [ErrNotFound], [ErrDenied] to others than the user who made it, [ErrClosed] if it is shut already.
func (s *Session) ShutChannel(id uint64) error {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	ch, err := s.channel(id)
	if err != nil {
		return err
	}
	if ch.uid != s.peer.UID {
		return situation(ErrDenied, "channel %q belongs to user %d", ch.info.Name, ch.uid)
	}
	ch.close()
	ch.logFailed("a channel could not be closed", ch.host.Close())
	ch.tidy()
	return nil
}

// close frees the name, and lets no member join any more. Service.mu is held.
func (ch *channel) close() {
	if ch.shut { // its name may be another's by now
		return
	}
	ch.shut = true
	delete(ch.pool.svc.channels, ch.info.Name)
}

// endChannels ends the channels of a pool that is being destroyed, at once. Service.mu is held.
func (s *Service) endChannels(p *Pool) {
	for _, ch := range s.channelByID {
		if ch.pool == p {
			ch.close()
			ch.host.Destroy()
			ch.tidy()
		}
	}
}

// failed is an error of the channel's memory as one of this package. A channel whose memory contradicts itself ends at once.
// Service.mu is held.
func (ch *channel) failed(err error) error {
	name := ch.info.Name
	switch {
	case err == nil:
		return nil
	case errors.Is(err, shmchannel.ErrCorrupt):
		ch.pool.svc.log.Error("a channel ends because its shared memory was corrupted by a member", "channel", name, "error", err)
		ch.close()
		ch.host.Destroy()
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
func (ch *channel) logFailed(what string, err error) {
	if err = ch.failed(err); err != nil && !errors.Is(err, ErrClosed) {
		ch.pool.svc.log.Error(what, "channel", ch.info.Name, "error", err)
	}
}
