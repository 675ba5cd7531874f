package mempool

import (
	"context"
	"time"
)

// channel is a named queue of buffers. It is guarded by Service.mu, except what never changes.
type channel struct {
	info ChannelInfo
	pool *Pool
	uid  uint32 // of the user who made it

	frames  []*frame // in order: broadcast keeps them, a queue has them waiting
	last    uint64   // number of the newest frame
	flying  int      // frames of a queue that subscribers were sent and have not settled
	missed  uint64   // frames of a queue that were dropped since the last was handed out
	subs    []*subscription
	turn    int // of the subscribers of a queue
	senders []*Sending
	room    signal // a send that waits may go on
	shut    bool   // nothing may join the senders

	shared *shared // nil unless the frames go through shared memory
}

// over says that no frame will be added any more. Service.mu is held.
func (ch *channel) over() bool { return ch.shut && len(ch.senders) == 0 }

// MakeChannel makes a channel, or finds the one that is just like it.
//
// Errors: [ErrInvalid], [ErrExists] if there is one of that name that is not like it, [ErrNotFound] and [ErrDenied] for the
// pool, [ErrLimit], [ErrClosed].
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
			way := "shared memory"
			if old.info.ThroughService {
				way = "the service"
			}
			return ChannelInfo{}, situation(ErrExists, "there is a channel %q already, in pool %q, with mode %s, capacity %d and policy %s, whose frames go through %s",
				spec.Name, old.pool.info.Name, old.info.Mode, old.info.Capacity, old.info.Full, way)
		}
		return old.info, nil
	}
	if p.closing {
		return ChannelInfo{}, p.ended()
	}
	if p.channels >= MaxChannels {
		return ChannelInfo{}, situation(ErrLimit, "pool %q has %d channels, and no more at a time", p.info.Name, p.channels)
	}
	ch := &channel{info: ChannelInfo{ID: svc.lastChannel + 1, ChannelSpec: spec}, pool: p, uid: s.peer.UID}
	if !spec.ThroughService {
		if ch.shared, err = newShared(ch); err != nil {
			return ChannelInfo{}, err
		}
	}
	svc.lastChannel++
	p.channels++
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

// ShutChannel closes a channel: nothing more can be sent, the name is free, and subscribers get an [Ended] after the last
// frame. Sends that wait for room are still carried out, while the channel has subscribers. The members of a shared channel find
// its end in the shared memory.
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
	if ch.shared != nil {
		ch.shared.close()
		return nil
	}
	ch.hand()
	return nil
}

// close refuses what is sent from now on. Service.mu is held.
func (ch *channel) close() {
	if ch.shut { // its name may be another's by now
		return
	}
	ch.shut = true
	delete(ch.pool.svc.channels, ch.info.Name)
	ch.room.broadcast()
}

// endChannels ends the channels of a pool that is being destroyed, at once. Service.mu is held.
func (s *Service) endChannels(p *Pool) {
	for _, ch := range s.channelByID {
		if ch.pool != p {
			continue
		}
		ch.close()
		if ch.shared != nil {
			ch.shared.destroy()
			continue
		}
		for len(ch.frames) > 0 {
			ch.drop()
		}
		for len(ch.subs) > 0 {
			ch.subs[0].end(p.ended())
		}
		ch.settle()
	}
}

// settle forgets a channel that is shut once nobody has anything to get from it. Service.mu is held.
func (ch *channel) settle() {
	svc := ch.pool.svc
	if !ch.shut || len(ch.subs) > 0 || svc.channelByID[ch.info.ID] != ch {
		return
	}
	for len(ch.frames) > 0 {
		ch.drop()
	}
	ch.forget()
}

// forget takes a channel out of the books. Service.mu is held.
func (ch *channel) forget() {
	delete(ch.pool.svc.channelByID, ch.info.ID)
	ch.pool.channels--
}

// full says why nothing can be sent now: nil if something can. Service.mu is held.
func (ch *channel) full() error {
	if len(ch.frames) < ch.info.Capacity {
		return nil
	}
	if ch.info.Mode == WorkQueue {
		return ch.queueFull()
	}
	return ch.broadcastFull()
}

// hand hands out what can be handed out. Service.mu is held.
func (ch *channel) hand() {
	if ch.info.Mode == WorkQueue {
		ch.handQueue()
	} else {
		ch.handBroadcast()
	}
	ch.settle()
}
