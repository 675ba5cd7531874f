package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/journal"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// channel is a named stream of buffers. Members write and read the frames in memory that they share, so the frames do not go through the
// service. The service decides which sessions take part, and frees what members that left had used. Service.mu guards a channel, except the
// fields `info`, `pool` and `uid`, which never change.
type channel struct {
	info mempool.ChannelIdentity
	pool *Pool
	uid  uint32 // the user who made the channel

	closed  bool // no producer publishes any more
	host    *shmchannel.Host
	members map[uint64]*member // members that have a slot, by id
	last    uint64             // the greatest id of a member
	// The keys of `kept` are buffers of producers that have left: the buffers that the channel or a consumer may still need. The value of each
	// key is a list of the producers that may have published this buffer.
	kept   map[*ledger.Buffer][]*member
	tended bool        // the goroutine of tend runs
	rests  time.Time   // the goroutine of tend does not call tidy before this time
	doubts journal.Gap // frames whose records contradicted themselves
	full   journal.Lag // since when a channel with the mode WorkQueue is full
	alone  time.Time   // since when a closed queue with frames has no consumer; zero: it has consumers, no frames, or is open
}

var (
	hostModes    = map[mempool.ChannelMode]shmchannel.Mode{mempool.Broadcast: shmchannel.Broadcast, mempool.WorkQueue: shmchannel.Queue}
	hostPolicies = map[mempool.FullPolicy]shmchannel.Policy{mempool.Block: shmchannel.Block, mempool.Fail: shmchannel.Fail,
		mempool.DropOldest: shmchannel.DropOldest,
		mempool.Latest:     shmchannel.Latest}
)

// MakeChannel makes a channel. If a channel with the same spec, and so with the same name, already exists, MakeChannel returns the existing
// channel.
//
// Errors: [mempool.ErrInvalid], [mempool.ErrExists] if a channel with the same name and another spec exists, [mempool.ErrNotFound] and
// [mempool.ErrDenied] for the pool of the spec, [mempool.ErrLimit], [mempool.ErrOutOfMemory], [mempool.ErrUnavailable] if the kernel cannot
// seal files, [mempool.ErrClosed].
func (s *Session) MakeChannel(spec mempool.ChannelSpec) (mempool.ChannelIdentity, error) {
	spec = spec.Filled()
	if err := spec.Validate(); err != nil {
		return mempool.ChannelIdentity{}, err
	}
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	p, err := s.pool(spec.Pool)
	if err != nil {
		return mempool.ChannelIdentity{}, err
	}
	old, err := ledger.Claim(s.rec, "channel", spec.Name, svc.channels[spec.Name])
	switch {
	case err != nil:
		return mempool.ChannelIdentity{}, err
	case old != nil:
		if old.info.ChannelSpec != spec {
			return mempool.ChannelIdentity{}, situation.Of(mempool.ErrExists, "there is a channel %q already, in pool %q, with mode %s, capacity %d and policy %s",
				spec.Name, old.pool.rec.Info.Name, old.info.Mode, old.info.Capacity, old.info.Full)
		}
		return old.info, nil
	}
	if p.rec.Closing {
		return mempool.ChannelIdentity{}, p.rec.Ending()
	}
	if p.rec.Channels >= mempool.MaxChannels {
		return mempool.ChannelIdentity{}, situation.Of(mempool.ErrLimit, "pool %q has %d channels, which is the limit", p.rec.Info.Name, p.rec.Channels)
	}
	ch, err := p.newChannel(spec, s.rec.Peer.UID)
	if err != nil {
		return mempool.ChannelIdentity{}, err
	}
	svc.channels[spec.Name] = ch
	svc.channelByID.Set(ch.info.ID, ch)
	svc.channeled.broadcast()
	ch.note(s.about(mempool.ChannelMade, "%s made channel %q in pool %q: %s, %d frames, %s when it is full", s.rec.Who(), spec.Name, p.rec.Info.Name, spec.Mode, spec.Capacity,
		spec.Full))
	svc.watchChannels()
	return ch.info, nil
}

// FindChannel finds a channel by name. It waits until the channel exists, but not longer than the time `wait`. If `role` is Consumer and
// closed queues of this name still have frames that wait for a consumer, FindChannel returns the oldest of these queues.
//
// Errors: [mempool.ErrNotFound] (if `wait` is 0) or [mempool.ErrTimeout], [mempool.ErrDenied], [mempool.ErrClosed], the context's error.
func (s *Session) FindChannel(ctx context.Context, name string, role MemberRole, wait time.Duration) (mempool.ChannelIdentity, error) {
	if err := mempool.ValidateName("channel", name); err != nil {
		return mempool.ChannelIdentity{}, err
	}
	w := s.newWaiter(ctx, wait, purpose{what: forChannel, name: name})
	defer w.stop()
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	for {
		if err := s.rec.Alive(); err != nil {
			return mempool.ChannelIdentity{}, err
		}
		var ch *channel
		if role == Consumer {
			ch = s.draining(name)
		}
		if ch == nil {
			ch = ledger.Find(s.rec, svc.channels[name])
		}
		if ch != nil {
			if !ch.pool.rec.Access.Allows(s.rec.Peer) {
				return mempool.ChannelIdentity{}, ch.pool.rec.Denied(s.rec.Peer)
			}
			return ch.info, nil
		}
		if !w.wait(svc.channeled.next()) {
			return mempool.ChannelIdentity{}, w.cause(missing(wait, "there is no channel %q in a pool that user %d may use", name, s.rec.Peer.UID))
		}
	}
}

// VisibleTo says whether a session may see the channel.
func (ch *channel) VisibleTo(s *ledger.Session) bool { return ch.pool.rec.VisibleTo(s) }

// draining finds the oldest closed queue of a name with frames that wait for a consumer. If the name has no such queue and no open channel
// either, draining finds a queue whose consumers have not acknowledged all frames: if one of them ends, its frames need another consumer.
// The caller holds Service.mu.
func (s *Session) draining(name string) (busy *channel) {
	for ch := range s.svc.channelByID.All() {
		if ch.info.Name != name || !ch.drains() || !ch.pool.rec.Access.Allows(s.rec.Peer) {
			continue
		}
		if ch.host.Used() > 0 {
			return ch
		}
		if busy == nil {
			busy = ch
		}
	}
	if ledger.Find(s.rec, s.svc.channels[name]) != nil {
		return nil
	}
	return busy
}

// drains says whether the channel is a closed queue with frames that are not acknowledged. The caller holds Service.mu.
func (ch *channel) drains() bool { return ch.closed && ch.host.Waiting() > 0 }

// channel finds an open channel by id. The session must be allowed to use the channel. The caller holds Service.mu.
func (s *Session) channel(id uint64) (*channel, error) {
	if err := s.rec.Alive(); err != nil {
		return nil, err
	}
	ch := ledger.Find(s.rec, s.svc.channelByID.Get(id))
	switch {
	case ch == nil:
		return nil, situation.Of(mempool.ErrClosed, "there is no channel %d in a pool that user %d may use: it is closed, or it never was there", id, s.rec.Peer.UID)
	case !ch.pool.rec.Access.Allows(s.rec.Peer):
		return nil, ch.pool.rec.Denied(s.rec.Peer)
	case ch.closed:
		return nil, situation.Of(mempool.ErrClosed, "channel %q is closed", ch.info.Name)
	}
	return ch, nil
}

// newChannel makes a channel for buffers of pool p. The parameter `uid` is the user who makes the channel. The caller holds Service.mu.
//
// Errors: [mempool.ErrUnavailable], [mempool.ErrLimit] if no file descriptor is left, [mempool.ErrOutOfMemory].
func (p *Pool) newChannel(spec mempool.ChannelSpec, uid uint32) (*channel, error) {
	svc := p.svc
	if err := timelinesWork(); err != nil { // a channel needs the same seals as a timeline
		return nil, err
	}
	if have, most := svc.channelByID.Len(), svc.ledger.Limits.Channels; have >= most {
		return nil, &LimitError{Limit: "channels", Max: most, Who: "the service", What: "channels", Have: have, Advice: "close some"}
	}
	host, err := shmchannel.NewHost(shmchannel.Spec{Mode: hostModes[spec.Mode], Capacity: spec.Capacity, Policy: hostPolicies[spec.Full]})
	if err != nil {
		return nil, mempool.HostError("make the memory of a channel", err)
	}
	svc.lastChannel++
	p.rec.Channels++
	p.streams = true
	return &channel{info: mempool.ChannelIdentity{ID: svc.lastChannel, ChannelSpec: spec}, pool: p, uid: uid, host: host,
		members: make(map[uint64]*member), kept: make(map[*ledger.Buffer][]*member)}, nil
}

// anyChannel finds an open or closed channel by id. The session must be allowed to use the channel. The caller holds Service.mu.
func (s *Session) anyChannel(id uint64) (*channel, error) {
	if ch := ledger.Find(s.rec, s.svc.channelByID.Get(id)); ch != nil && !s.rec.Ended && ch.pool.rec.Access.Allows(s.rec.Peer) {
		return ch, nil
	}
	return s.channel(id)
}

// CloseChannel closes a channel: no producer can publish any more, and the channel's name is free. The members learn from the channel's
// shared memory that the channel is closed. Consumers can still take the frames that were published before. Consumers of a queue can still
// find it and join, until every frame is acknowledged, or until the queue has had no consumer for as long as the limit closed-queue-seconds
// allows: then the rest of the frames is lost.
//
// Errors: [mempool.ErrDenied] for all users except the user who made the channel, [mempool.ErrClosed] if there is no such channel, or if it
// is closed already.
func (s *Session) CloseChannel(id uint64) error {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	ch, err := s.channel(id)
	if err != nil {
		return err
	}
	if ch.uid != s.rec.Peer.UID {
		return situation.Of(mempool.ErrDenied, "channel %q belongs to user %d", ch.info.Name, ch.uid)
	}
	s.noteUse()
	ch.close()
	ch.logFailed("a channel could not be closed", ch.host.Close())
	e := s.about(mempool.ChannelClosed, "%s closed channel %q after %d frames", s.rec.Who(), ch.info.Name, ch.host.Published())
	if n := ch.host.Waiting(); n > 0 {
		e.Text += fmt.Sprintf(", of which %d are not acknowledged", n)
	}
	ch.note(e)
	ch.tidy()
	return nil
}

// close frees the channel's name. No member can join any more. The caller holds Service.mu.
func (ch *channel) close() {
	if ch.closed { // another channel may have this name by now
		return
	}
	ch.closed = true
	delete(ch.pool.svc.channels, ch.info.Name)
}

// destroy ends the channel at once. If frames of a queue are lost, destroy notes an event that says why. The caller holds Service.mu.
func (ch *channel) destroy(why string) {
	if n := ch.host.Waiting(); n > 0 {
		ch.note(mempool.HistoryEvent{Kind: mempool.FrameLost, Count: int(n), Text: fmt.Sprintf("queue %q ended with %s that no consumer had acknowledged: %s",
			ch.info.Name, count.Of(n, "frame"), why)})
	}
	ch.host.Destroy()
}

// endChannels ends at once all channels of a pool that is being destroyed. The caller holds Service.mu.
func (s *Service) endChannels(p *Pool) {
	for ch := range s.channelByID.All() {
		if ch.pool == p {
			if !ch.closed {
				ch.note(mempool.HistoryEvent{Kind: mempool.ChannelClosed, Text: fmt.Sprintf("channel %q ended with pool %q", ch.info.Name, p.rec.Info.Name)})
			}
			ch.close()
			ch.destroy("its pool was destroyed")
			ch.tidy()
		}
	}
}

// failed converts an error of package shmchannel to an error that this package returns. If the error says that the channel's memory is
// corrupt, failed ends the channel. The caller holds Service.mu.
func (ch *channel) failed(err error) error {
	name := ch.info.Name
	switch {
	case err == nil:
		return nil
	case errors.Is(err, shmchannel.ErrCorrupt):
		ch.note(mempool.HistoryEvent{Kind: mempool.ChannelFailed, Text: fmt.Sprintf("channel %q ends because a member corrupted its shared memory: %v; restart its "+
			"members", name, err)})
		ch.close()
		ch.destroy("its memory is corrupt")
		return situation.Of(mempool.ErrClosed, "channel %q is closed: %v", name, err)
	case errors.Is(err, shmchannel.ErrClosed):
		return situation.Of(mempool.ErrClosed, "channel %q is closed", name)
	case errors.Is(err, shmchannel.ErrNoSlot):
		return situation.Of(mempool.ErrLimit, "channel %q: %v", name, err)
	case errors.Is(err, shmchannel.ErrInvalid), errors.Is(err, shmchannel.ErrFile):
		return situation.Of(mempool.ErrInvalid, "channel %q: %v", name, err)
	}
	return mempool.HostError("share the memory of a channel", err)
}

// logFailed notes an event about an error of the channel's memory. It is for errors that no caller gets. The caller holds Service.mu.
func (ch *channel) logFailed(what string, err error) {
	if err = ch.failed(err); err != nil && !errors.Is(err, mempool.ErrClosed) {
		ch.note(mempool.HistoryEvent{Kind: mempool.ChannelFailed, Text: fmt.Sprintf("%s: %q: %v", what, ch.info.Name, err)})
	}
}

// note adds an event of the channel to the history. The caller holds Service.mu.
func (ch *channel) note(e mempool.HistoryEvent) {
	e.Channel = ch.info.Name
	ch.pool.svc.note(e, ch.pool.rec)
}
