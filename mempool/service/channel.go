package service

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
	"github.com/poolbridge/poolbridge/mempool/service/streams"
)

// Channel is a channel as a session names it: by id. The session may not be allowed to use the channel, or it may be closed: then the methods
// return errors.
type Channel struct {
	session *Session
	id      uint64
}

// Channel names a channel by id.
func (s *Session) Channel(id uint64) Channel { return Channel{s, id} }

// Member names a member of the channel by id.
func (c Channel) Member(id uint64) Member { return Member{c.session, c.id, id} }

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
	defer svc.freeAndUnlock()
	var p *Pool
	var old *ledger.Channel
	may := func() (err error) {
		if p, err = svc.pools.usableLocked(s, spec.Pool); err == nil {
			old, err = svc.ledger.MayMakeChannel(s.rec, spec, p.rec)
		}
		return err
	}
	err := may()
	var files []*spare
	if err == nil && old == nil {
		names := []string{shmchannel.RosterName, shmchannel.SequencerName}
		for range svc.channels.awaitedLocked(spec) {
			names = append(names, shmchannel.CursorName)
		}
		files, err = svc.descriptors.sparesLocked(names...)
		defer svc.descriptors.giveBack(files)
		if err == nil {
			err = may() // others may have changed something meanwhile
		}
	}
	if err != nil {
		return mempool.ChannelIdentity{}, err
	}
	if old != nil {
		return old.Info, nil
	}
	stream, err := streams.Make(svc.ledger, &svc.timelines, spec, p.rec, s.rec.Peer.UID, files[0].file, files[1].file, svc.mu.note)
	if err != nil {
		return mempool.ChannelIdentity{}, err
	}
	p.demand.streams = true
	stream.RosterFile, stream.SequencerFile = files[0].use(), files[1].use()
	s.keepAnswerLocked(context.Background(), stream.Info.ID)
	svc.channels.addLocked(&channel{Stream: stream, svc: svc}, files[2:])
	e := s.rec.About(mempool.ChannelMade, "%s made channel %q in pool %q: %s, %d frames, %s when it is full", s.rec.Who(), spec.Name, p.rec.Info.Name, spec.Mode, spec.Capacity,
		spec.Full)
	e.Channel = spec.Name
	svc.mu.note(e, p.rec)
	return stream.Info, nil
}

// FindChannel finds an open channel by name. It waits until the channel exists, but not longer than the time `wait`.
//
// Errors: [mempool.ErrNotFound] (if `wait` is 0) or [mempool.ErrTimeout], [mempool.ErrDenied], [mempool.ErrClosed], the context's error.
func (s *Session) FindChannel(ctx context.Context, name string, wait time.Duration) (found mempool.ChannelIdentity, err error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	err = svc.channels.awaitLocked(ctx, s, name, wait, func() (bool, error) {
		ch, err := svc.channels.namedLocked(s.rec, name, Producer)
		if ch != nil {
			found = ch.Info
		}
		return ch != nil, err
	})
	return found, err
}

// Join makes a new member of the channel. The session's process must then map the member's files and call [Member.Enter]. If
// the session's timeline is already sealed, the member's fences belong to this timeline. Otherwise the member has no fences.
//
// Errors: [mempool.ErrNotFound], [mempool.ErrInvalid], [mempool.ErrDenied], [mempool.ErrLimit], [mempool.ErrOutOfMemory],
// [mempool.ErrClosed] for a channel that is closed; a consumer can join a closed queue as long as not all of its frames are acknowledged.
func (c Channel) Join(spec MemberSpec) (Joined, error) {
	s := c.session
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	if _, err := svc.ledger.Channel(s.rec, c.id); err != nil { // the caller gets this error without waiting for the store
		return Joined{}, err
	}
	file, err := svc.descriptors.sparesLocked(memberFile(spec.Role))
	defer svc.descriptors.giveBack(file)
	if err != nil {
		return Joined{}, err
	}
	rec, err := svc.ledger.Channel(s.rec, c.id)
	if err != nil {
		return Joined{}, err
	}
	j, err := svc.channels.of(rec).joinLocked(s, spec, file[0])
	if err == nil {
		s.keepAnswerLocked(context.Background(), answerOf(j))
	}
	return j, err
}

// JoinChannel makes a new consumer of the channel with this name, as [Channel.Join] does. It waits until the channel exists, but not longer
// than the time `wait`. If closed queues of this name still have frames that wait for a consumer, the consumer joins the oldest of these
// queues.
//
// A consumer that has waited for its channel gets the channel's frames from the first. If producers must wait for the consumer, they also
// wait until it has entered. They wait as long as the service is patient; then the consumer leaves. Any other consumer begins with the oldest
// frame that the channel still keeps when the consumer enters.
//
// Errors: those of FindChannel and of [Channel.Join].
func (s *Session) JoinChannel(ctx context.Context, name string, spec MemberSpec, wait time.Duration) (Joined, error) {
	if spec.Role != Consumer {
		return Joined{}, typed.Errorf(mempool.ErrInvalid, "only a consumer can join a channel by its name: open the channel, and join it by its id")
	}
	if spec.Full != "" { // before the request waits
		if err := spec.Full.Validate(); err != nil {
			return Joined{}, err
		}
	}
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	p := &pendingJoin{session: s, spec: spec}
	var file []*spare // a request that waits has none: it would keep a descriptor in the store
	defer func() { svc.descriptors.giveBack(file) }()
	err := svc.channels.awaitLocked(ctx, s, name, wait, func() (bool, error) {
		for !p.done {
			rec, err := svc.channels.namedLocked(s.rec, name, Consumer)
			if err != nil {
				return false, err
			}
			if rec == nil {
				svc.descriptors.giveBack(file)
				if file = nil; wait > 0 {
					svc.channels.addPendingLocked(name, p)
				}
				return false, nil
			}
			if file != nil {
				p.joined, p.err = svc.channels.of(rec).joinLocked(s, p.spec, file[0])
				break
			}
			file, err = svc.descriptors.sparesLocked(memberFile(Consumer)) // and then again: others may have changed something meanwhile
			if err = cmp.Or(err, s.rec.Alive()); err != nil {
				return true, err
			}
		}
		if p.err == nil {
			s.keepAnswerLocked(ctx, answerOf(p.joined))
		}
		return true, p.err
	})
	svc.channels.removePendingLocked(name, p) // with the lock that decided the result: who gives up gets no place
	if err != nil {
		return Joined{}, err
	}
	return p.joined, nil
}

// addLocked adds a channel that was just made, and wakes the requests that wait for a channel. `cursors` are files for their consumers.
func (cs *channels) addLocked(ch *channel, cursors []*spare) {
	cs.all[ch.Info.ID] = ch
	ch.admitPendingLocked(cursors)
	cs.made.broadcast()
	cs.watchLocked()
}

func (cs *channels) addPendingLocked(name string, p *pendingJoin) {
	if !p.waits {
		p.waits, p.spec.Oldest = true, true
		cs.pending[name] = append(cs.pending[name], p)
	}
}

func (cs *channels) removePendingLocked(name string, p *pendingJoin) {
	cs.pending[name] = slices.DeleteFunc(cs.pending[name], func(one *pendingJoin) bool { return one == p })
	if len(cs.pending[name]) == 0 {
		ledger.RemoveKey(&cs.pending, &cs.mostPending, name)
	}
}

// awaits says whether producers of a channel must wait for this consumer. A queue keeps its frames until a consumer comes.
func (p *pendingJoin) awaits(mode mempool.ChannelMode, full mempool.FullPolicy) bool {
	full = cmp.Or(p.spec.Full, full)
	return !p.done && mode == mempool.Broadcast && (full == mempool.Block || full == mempool.Fail)
}

// awaitedLocked returns for how many consumers that wait for a channel producers will have to wait.
func (cs *channels) awaitedLocked(spec mempool.ChannelSpec) (n int) {
	for _, p := range cs.pending[spec.Name] {
		if p.awaits(spec.Mode, spec.Full) {
			n++
		}
	}
	return n
}

// admitPendingLocked is for a channel that was just made. It makes the consumers for which producers must wait, of those that wait for the
// channel, so that they take part before the first frame. The other consumers join when they wake.
func (ch *channel) admitPendingLocked(cursors []*spare) {
	for _, p := range ch.svc.channels.pending[ch.Info.Name] {
		if len(cursors) == 0 {
			return // who came while the channel was made joins when it wakes
		}
		if !p.awaits(ch.Info.Mode, ch.Info.Full) || p.session.rec.Ended || !ch.Pool.Access.Allows(p.session.rec.Peer) {
			continue
		}
		p.done = true
		p.joined, p.err = ch.joinLocked(p.session, p.spec, cursors[0])
		if cursors = cursors[1:]; p.err != nil {
			continue
		}
		m := ch.Members[p.joined.ID]
		if p.err = ch.Reserve(m); p.err != nil {
			ch.leaveLocked(m, mempool.SessionFailed)
			ch.tidyLocked()
		}
	}
}

// awaitLocked calls `find` until it returns true or an error. It waits between the calls until a channel is made, but not longer than the
// time `wait`. It releases Service.mu only while it waits.
func (cs *channels) awaitLocked(ctx context.Context, s *Session, name string, wait time.Duration, find func() (bool, error)) error {
	if err := mempool.ValidateName("channel", name); err != nil {
		return err
	}
	w := newWaiter(ctx, s, wait, purpose{what: forChannel, name: name})
	defer w.stop()
	for last := false; ; {
		if err := s.rec.Alive(); err != nil {
			return err
		}
		if found, err := find(); found || err != nil {
			return err
		}
		if last {
			return w.cause(missing(wait, "there is no channel %q in a pool that user %d may use%s", name, s.rec.Peer.UID,
				ledger.Similar(s.rec, name, maps.All(cs.svc.ledger.ChannelNames))))
		}
		last = !w.wait(cs.made.next())
	}
}

// namedLocked finds a channel by name. A producer needs an open channel. A consumer gets the oldest closed queue with frames that wait for
// a consumer, if there is one. If the name has no channel in a pool that the session may see, the result is nil.
//
// Errors: [mempool.ErrDenied].
func (cs *channels) namedLocked(s *ledger.Session, name string, role MemberRole) (*ledger.Channel, error) {
	ch := ledger.Find(s, cs.svc.ledger.ChannelNames[name])
	if role == Consumer {
		ch = cmp.Or(cs.drainingQueueLocked(s.Peer, name, ch != nil), ch)
	}
	if ch != nil && !ch.Pool.Access.Allows(s.Peer) {
		return nil, ch.Pool.Denied(s.Peer)
	}
	return ch, nil
}

// drainingQueueLocked finds the oldest closed queue of a name with frames that wait for a consumer, in a pool that the peer may use. If the
// name has no such queue and no open channel either, drainingQueueLocked finds a queue whose consumers have not acknowledged all frames: if
// one of them ends, its frames need another consumer.
func (cs *channels) drainingQueueLocked(peer mempool.Peer, name string, open bool) (busy *ledger.Channel) {
	for rec := range cs.svc.ledger.Channels.All() {
		if rec.Info.Name != name || !rec.Closed || !rec.Pool.Access.Allows(peer) {
			continue
		}
		ch := cs.of(rec)
		if !ch.Drains() {
			continue
		}
		if ch.Used() > 0 {
			return rec
		}
		if busy == nil && !open {
			busy = rec
		}
	}
	return busy
}

// AwaitConsumers waits until the channel has at least n consumers, but not longer than the time `wait`.
//
// Errors: [mempool.ErrInvalid] for an n that no channel can have, [mempool.ErrTimeout], [mempool.ErrDenied], [mempool.ErrClosed] also if the
// channel is closed meanwhile, the context's error.
func (c Channel) AwaitConsumers(ctx context.Context, n uint64, wait time.Duration) error {
	if n < 1 || n > mempool.MaxConsumers {
		return typed.Errorf(mempool.ErrInvalid, "a channel has 1 to %d consumers: it cannot have %d", mempool.MaxConsumers, n)
	}
	s := c.session
	svc := s.svc
	w := newWaiter(ctx, s, wait, purpose{what: forConsumers})
	defer w.stop()
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	for {
		rec, err := svc.ledger.Channel(s.rec, c.id)
		if err != nil {
			return err
		}
		ch := svc.channels.of(rec)
		if ch.Closed {
			return ch.ErrClosed()
		}
		have := ch.Consumers()
		if uint64(have) >= n {
			return nil
		}
		w.purpose.name, w.purpose.pool = ch.Info.Name, ch.Pool
		if !w.wait(ch.joined.next()) {
			return w.cause(typed.Errorf(mempool.ErrTimeout, "after %v: channel %q has %d of %s", wait, ch.Info.Name, have, count.Of(n, "consumer")))
		}
	}
}

// Close closes the channel: no producer can publish any more, and the channel's name is free. The members learn from the channel's
// shared memory that the channel is closed. Consumers can still take the frames that were published before. Consumers of a queue can still
// find it and join, until every frame is acknowledged, or until the queue has had no consumer for as long as the limit closed-queue-seconds
// allows: then the rest of the frames is lost.
//
// Errors: [mempool.ErrDenied] for all users except the user who made the channel, [mempool.ErrClosed] if there is no such channel, or if it
// is closed already.
func (c Channel) Close() error {
	return c.end((*ledger.Channel).MayClose, (*channel).Close)
}

// Discard ends a closed queue: frames that are not acknowledged are lost.
//
// Errors: those of Close; [mempool.ErrInvalid] if the channel is open or a broadcast.
func (c Channel) Discard() error {
	return c.end((*ledger.Channel).MayDiscard, (*channel).Discard)
}

func (c Channel) end(may func(*ledger.Channel, *ledger.Session) error, end func(*channel, *ledger.Session)) error {
	s := c.session
	svc := s.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	rec, err := svc.ledger.Channel(s.rec, c.id)
	if err != nil {
		return err
	}
	if err := may(rec, s.rec); err != nil {
		return err
	}
	s.noteUse()
	ch := svc.channels.of(rec)
	end(ch, s.rec)
	s.keepAnswerLocked(context.Background(), 0)
	ch.tidyLocked()
	return nil
}

// MappedBlock is what a consumer needs to map a block.
type MappedBlock struct {
	// Generation is that of the block's present buffer. Bytes is the block's size.
	Generation, Bytes uint64
	// Export is the export of the block. The service closes the files of the export, so the caller must not close them.
	Export mempool.Export
}

// MapBlock returns what the session needs to map a block. The session has a consumer in the channel, and this consumer has found the block's
// id in a frame. Until the session calls [Session.Dropped], the service treats the block as mapped by the session.
//
// Errors: [mempool.ErrNotFound] if no buffer of the pool uses the block, [mempool.ErrDenied] if the session has no consumer in the channel,
// [mempool.ErrLimit], [mempool.ErrClosed]; the driver's errors.
func (c Channel) MapBlock(id uint64) (MappedBlock, error) {
	s := c.session
	svc := s.svc
	svc.mu.Lock()
	b, err := svc.ledger.MapLent(s.rec, c.id, id)
	if err != nil {
		svc.freeAndUnlock()
		return MappedBlock{}, err
	}
	memory, info := svc.memoryOf(b), MappedBlock{Generation: b.Generation, Bytes: b.Size}
	svc.freeAndUnlock()
	if info.Export, err = memory.exportOnce(svc.eventLog); err == nil {
		return info, nil
	}
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	if s.rec.Mapped[b.ID] == b {
		svc.pools.of(b.Pool).unmapLocked(s.rec, b)
	}
	return MappedBlock{}, err
}
