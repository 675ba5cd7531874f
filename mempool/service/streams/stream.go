package streams

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/eventlog"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// Stream is a channel with its shared memory. Members write and read the frames in this memory, so the frames do not go through the service.
type Stream struct {
	*ledger.Channel
	ledger    *ledger.Ledger
	timelines *Timelines
	note      func(mempool.HistoryEvent)
	host      *shmchannel.Host
	ends      map[uint64]*end // by id of a member that has a seat
	doubts    eventlog.Gap    // frames whose records contradicted themselves
	spent     eventlog.Gap    // frames that were delivered too often
	lost      uint64          // the number of these frames
	full      eventlog.Lag    // since when a queue is full
	dropped   uint64          // how many frames the channel had dropped when one was seen to be dropped last
	droppedAt time.Time       // when this was
	untaken   eventlog.Lag    // since when a queue drops frames because no consumer takes them
	taken     uint64          // how many frames the consumers of a queue had taken
	idle      time.Time       // when this was, or they had frames in hand; zero: the queue does not want room
	wanted    uint64          // how many frames a queue had dropped before that
}

// end is the service's end of a member's memory.
type end struct {
	*shmchannel.Member
	behind   eventlog.Lag // since when this consumer of a broadcast leaves the channel no room for another frame
	reserved time.Time    // when Reserve was called
}

var (
	modes    = map[mempool.ChannelMode]shmchannel.Mode{mempool.Broadcast: shmchannel.Broadcast, mempool.WorkQueue: shmchannel.Queue}
	policies = map[mempool.FullPolicy]shmchannel.Policy{mempool.Block: shmchannel.Block, mempool.Fail: shmchannel.Fail,
		mempool.DropOldest: shmchannel.DropOldest, mempool.Latest: shmchannel.Latest}
	roles = map[ledger.MemberRole]shmchannel.Role{ledger.Producer: shmchannel.ProducerRole, ledger.Consumer: shmchannel.ConsumerRole}
)

// Make makes a channel for buffers of the pool p, which the user `uid` asked for, and which may be made. The stream calls `note` with each
// event of the channel for the history. `roster` and `sequencer` are those of [shmchannel.NewHost].
//
// Errors: [mempool.ErrUnavailable] if the kernel cannot seal files, [mempool.ErrLimit] if no file descriptor is left,
// [mempool.ErrOutOfMemory].
func Make(l *ledger.Ledger, ts *Timelines, spec mempool.ChannelSpec, p *ledger.Pool, uid uint32, roster, sequencer *os.File,
	note func(mempool.HistoryEvent, *ledger.Pool)) (*Stream, error) {
	if err := Probe(); err != nil { // a channel needs the same seals as a timeline
		return nil, err
	}
	host, err := shmchannel.NewHost(shmchannel.Spec{Mode: modes[spec.Mode], Capacity: spec.Capacity, Policy: policies[spec.Full],
		MaxDeliveries: spec.MaxDeliveries}, roster, sequencer)
	if err != nil {
		return nil, mempool.HostError("make the memory of a channel", err)
	}
	return of(l.AddChannel(spec, p, uid), l, ts, host, note), nil
}

func of(ch *ledger.Channel, l *ledger.Ledger, ts *Timelines, host *shmchannel.Host, note func(mempool.HistoryEvent, *ledger.Pool)) *Stream {
	return &Stream{Channel: ch, ledger: l, timelines: ts, host: host, ends: make(map[uint64]*end),
		note: func(e mempool.HistoryEvent) {
			e.Channel = ch.Info.Name
			note(e, ch.Pool)
		}}
}

// Adopt takes over a channel of a service that died. The function `file` returns a descriptor that the channel's records name.
func Adopt(l *ledger.Ledger, ts *Timelines, ch *ledger.Channel, file func(number uint64) (*os.File, error), note func(mempool.HistoryEvent, *ledger.Pool)) (*Stream, error) {
	roster, err := file(ch.RosterFile)
	if err != nil {
		return nil, err
	}
	sequencer, err := file(ch.SequencerFile)
	if err != nil {
		return nil, err
	}
	var members []shmchannel.AdoptedMember
	for _, m := range ch.Members {
		f, err := file(m.File)
		if err != nil {
			return nil, err
		}
		one := shmchannel.AdoptedMember{ID: m.ID, Seat: m.Seat, File: f, Entered: m.Entered, Reserved: m.Reserved, Left: m.Left, SaidLeft: m.Said,
			MemberSpec: shmchannel.MemberSpec{Role: roles[m.Role], PID: uint32(m.Session.Peer.PID), Oldest: m.Oldest, Policy: policies[m.Full]}}
		if m.Timeline != nil {
			one.Timeline = m.Timeline.ID
		}
		members = append(members, one)
	}
	spec := shmchannel.Spec{Mode: modes[ch.Info.Mode], Capacity: ch.Info.Capacity, Policy: policies[ch.Info.Full], MaxDeliveries: ch.Info.MaxDeliveries}
	host, all, err := shmchannel.AdoptHost(spec, roster, sequencer, ch.LastMember, ch.First, ch.Closed, members)
	if err != nil {
		return nil, mempool.HostError("take over the memory of a channel", err)
	}
	st := of(ch, l, ts, host, note)
	for _, m := range all {
		st.ends[m.ID] = &end{Member: m, reserved: time.Now()}
	}
	if host.Destroyed() {
		l.CloseChannel(ch)
	}
	return st, nil
}

// Add makes a new member, which may join. If a producer finds no seat because producers that left still have theirs, Add makes a broadcast
// keep fewer frames, and then calls the function `tidy`, which frees seats. `empty` is that of [shmchannel.MemberSpec].
//
// Errors: [mempool.ErrClosed], [mempool.ErrLimit], [mempool.ErrOutOfMemory].
func (st *Stream) Add(s *ledger.Session, spec ledger.MemberSpec, empty *os.File, tidy func()) (*ledger.Member, error) {
	how := shmchannel.MemberSpec{Role: roles[spec.Role], PID: uint32(s.Peer.PID), Oldest: spec.Oldest, Policy: policies[st.Info.Full], Empty: empty}
	if spec.Full != "" {
		how.Policy = policies[spec.Full]
	}
	if t := s.SealedTimeline(); t != nil {
		how.Timeline = t.ID
	}
	added, err := st.host.Add(how)
	if spec.Role == ledger.Producer && errors.Is(err, shmchannel.ErrNoSeat) && st.host.GiveUp() {
		st.First = st.host.First()
		st.Touch(st.Channel)
		tidy() // otherwise dead producers would keep the seats until other producers publish, and these cannot join
		added, err = st.host.Add(how)
	}
	if err != nil {
		return nil, st.failed(err)
	}
	st.ends[added.ID] = &end{Member: added}
	return st.ledger.AddMember(st.Channel, s, spec, added.ID, added.Seat), nil
}

// Files returns the files that a member needs: the roster, the sequencer, and the member's own file.
func (st *Stream) Files(m *ledger.Member) []*os.File {
	return []*os.File{st.host.RosterFile(), st.host.SequencerFile(), st.Own(m)}
}

// Own returns a member's file for the member, which writes it.
func (st *Stream) Own(m *ledger.Member) *os.File { return st.ends[m.ID].File() }

// File returns a member's file for the members of the other role, which read it.
func (st *Stream) File(m *ledger.Member) *os.File { return st.ends[m.ID].Reader() }

// Enter activates a member whose process has mapped the member's files.
//
// Errors: [mempool.ErrClosed].
func (st *Stream) Enter(m *ledger.Member) error {
	err := st.failed(st.host.Join(st.ends[m.ID].Member))
	if err == nil {
		m.Entered, m.Reserved = true, false
		st.Touch(m)
	}
	return err
}

// Reserve lets a consumer take part before its process has mapped the member's files. The consumer gets every frame that is published
// afterwards. Producers wait until it enters or leaves.
//
// Errors: [mempool.ErrClosed].
func (st *Stream) Reserve(m *ledger.Member) error {
	err := st.failed(st.host.Reserve(st.ends[m.ID].Member))
	m.Reserved, st.ends[m.ID].reserved = err == nil, time.Now()
	st.Touch(m)
	return err
}

// Absent returns the consumers that have not entered within the time `patience` after Reserve, and notes them as an event. The caller makes
// them leave.
func (st *Stream) Absent(patience time.Duration) (absent []*ledger.Member) {
	for _, m := range st.Members {
		if !m.Reserved || m.Left || time.Since(st.ends[m.ID].reserved) < patience {
			continue
		}
		absent = append(absent, m)
		st.note(m.Session.About(mempool.SubscriberSlow, "%s waited for channel %q, and has not entered it within %v: it is removed, so that producers do not wait for it",
			m.Session.Who(), st.Info.Name, patience))
	}
	return absent
}

// Leave removes a member, and notes in its timeline the fences that are in its file. The argument `how` says how its session ended; "" means
// that the member itself asked to leave.
func (st *Stream) Leave(m *ledger.Member, how mempool.SessionEnding) {
	if m.Left {
		return
	}
	m.Leave(how == "")
	of := st.ends[m.ID].Member
	var err error
	if how == "" {
		err = st.host.Leave(of)
	} else {
		err = st.host.Expel(of, shmchannel.Ending(1+slices.Index(mempool.SessionEndings(), how)))
	}
	st.noteFailed("a member of a channel could not be taken out", err)
	if m.Timeline == nil || !m.Entered {
		return
	}
	found, _ := st.host.Fences(nil, of)
	for _, f := range found {
		m.Timeline.Promise(f.Word, f.Value)
	}
}

// Gone notes that a member's process is gone.
func (st *Stream) Gone(m *ledger.Member) {
	st.noteFailed("a member of a channel could not be taken out", st.host.Gone(st.ends[m.ID].Member))
}

// Sweep frees the seats of members that left, if nothing needs these seats any more. It returns these members, and the caller removes them
// from the ledger.
func (st *Stream) Sweep() (gone []*ledger.Member) {
	found, err := st.host.Sweep(nil, func(f shmchannel.Fence) bool {
		return st.timelines.Over(mempool.Fence{Timeline: f.Timeline, Word: f.Word, Value: f.Value})
	})
	for _, m := range found {
		gone = append(gone, st.Members[m.ID])
		delete(st.ends, m.ID)
	}
	if err != nil {
		st.noteFailed("members of a channel could not be taken out of its memory", err)
	}
	return gone
}

// Close closes the channel for a session.
func (st *Stream) Close(by *ledger.Session) {
	st.ledger.CloseChannel(st.Channel)
	st.noteFailed("a channel could not be closed", st.host.Close())
	e := by.About(mempool.ChannelClosed, "%s closed channel %q after %d frames", by.Who(), st.Info.Name, st.host.Published())
	if n := st.host.Waiting(); n > 0 {
		e.Text += fmt.Sprintf(", of which %d are not acknowledged", n)
	}
	st.note(e)
}

// End ends the channel of a pool that is being destroyed; why says what happened.
func (st *Stream) End(why string) {
	if !st.Closed {
		st.note(mempool.HistoryEvent{Kind: mempool.ChannelClosed, Text: fmt.Sprintf("channel %q ended with pool %q", st.Info.Name, st.Pool.Info.Name)})
	}
	st.destroy(why)
}

// Expire ends a channel that is over. A producer that still maps the memory finds in it that the channel is destroyed. The producer then
// takes back all its blocks.
func (st *Stream) Expire() {
	st.destroy(fmt.Sprintf("after it was closed, it had no consumer for %v (--limit closed-queue-seconds=N changes this)", st.patience()))
}

// Discard ends a closed channel for a session.
func (st *Stream) Discard(by *ledger.Session) { st.destroy(by.Who() + " discarded them") }

// destroy ends the channel at once. If frames of a queue are lost, destroy notes an event that says why.
func (st *Stream) destroy(why string) {
	st.ledger.CloseChannel(st.Channel)
	if n := st.host.Waiting(); n > 0 {
		st.note(mempool.HistoryEvent{Kind: mempool.FrameLost, Count: int(n), Text: fmt.Sprintf("queue %q ended with %s that no consumer had acknowledged: %s",
			st.Info.Name, count.Of(n, "frame"), why)})
	}
	st.host.Destroy()
}

// Free frees the memory of a channel that has ended.
func (st *Stream) Free() {
	if err := st.host.Free(); err != nil {
		st.note(mempool.HistoryEvent{Kind: mempool.DriverError, Text: fmt.Sprintf("the memory of channel %q could not be freed: %v", st.Info.Name, err)})
	}
}

// ErrClosed returns the error of a request that needs an open channel, or a queue that is not drained.
func (st *Stream) ErrClosed() error {
	return typed.Errorf(mempool.ErrClosed, "channel %q is closed", st.Info.Name)
}

// failed converts an error of package shmchannel to an error that this package returns. If the error says that the channel's memory is
// corrupt, failed ends the channel.
func (st *Stream) failed(err error) error {
	name := st.Info.Name
	switch {
	case err == nil:
		return nil
	case errors.Is(err, shmchannel.ErrCorrupt):
		st.note(mempool.HistoryEvent{Kind: mempool.ChannelFailed, Text: fmt.Sprintf("channel %q ends because a member corrupted its shared memory: %v; restart its "+
			"members", name, err)})
		st.destroy("its memory is corrupt")
		return typed.Errorf(mempool.ErrClosed, "channel %q is closed: %v", name, err)
	case errors.Is(err, shmchannel.ErrClosed):
		return st.ErrClosed()
	case errors.Is(err, shmchannel.ErrNoSeat):
		return typed.Errorf(mempool.ErrLimit, "channel %q: %v", name, err)
	case errors.Is(err, shmchannel.ErrInvalid), errors.Is(err, shmchannel.ErrFile):
		return typed.Errorf(mempool.ErrInvalid, "channel %q: %v", name, err)
	}
	return mempool.HostError("share the memory of a channel", err)
}

// noteFailed notes an event about an error of the channel's memory. It is for errors that no caller gets.
func (st *Stream) noteFailed(what string, err error) {
	if err = st.failed(err); err != nil && !errors.Is(err, mempool.ErrClosed) {
		st.note(mempool.HistoryEvent{Kind: mempool.ChannelFailed, Text: fmt.Sprintf("%s: %q: %v", what, st.Info.Name, err)})
	}
}

// Drains says whether the channel is a closed queue with frames that are not acknowledged.
func (st *Stream) Drains() bool { return st.Closed && st.host.Waiting() > 0 }

// Over says whether the channel can be freed: it is closed, has no consumer and, if it is a queue, no frame waits any more or the frames have
// waited too long for a consumer.
func (st *Stream) Over() bool {
	if !st.Closed || st.Consumed() || !st.Drains() {
		st.beAlone(time.Time{})
		return st.Closed && !st.Consumed()
	}
	if st.Alone.IsZero() {
		st.beAlone(time.Now())
	}
	return time.Since(st.Alone) >= st.patience()
}

// beAlone notes since when the channel has no consumer.
func (st *Stream) beAlone(since time.Time) {
	if st.Alone != since {
		st.Alone = since
		st.Touch(st.Channel)
	}
}

// patience returns how long a closed queue waits for a consumer.
func (st *Stream) patience() time.Duration {
	return time.Duration(st.ledger.Limits.ClosedQueueSeconds) * time.Second
}

// Doubt notes as an event that a consumer has acknowledged a frame instead of giving it to its program: after `deliveries` deliveries or, if
// this is 0, because the frame's record contradicts itself.
func (st *Stream) Doubt(by *ledger.Session, number, deliveries uint64) {
	if deliveries > 0 {
		st.lost++
		if count, now := st.spent.Tell(); now {
			e := by.About(mempool.FrameUndeliverable, "%s dropped frame %d of queue %q: consumers got it %d times, the most that the queue allows, and none acknowledged it", by.Who(),
				number, st.Info.Name, deliveries)
			e.Count = count
			st.note(e)
		}
		return
	}
	if count, now := st.doubts.Tell(); now {
		e := by.About(mempool.FrameDoubted, "%s found a frame that contradicts itself, number %d of channel %q: a producer wrote what it must not", by.Who(), number,
			st.Info.Name)
		e.Count = count
		st.note(e)
	}
}
