package service

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/internal/failpoint"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/books"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
	"github.com/poolbridge/poolbridge/mempool/service/streams"
)

// This file makes a service of what a predecessor has left.

// TookOver notes that the service took over from one that died, within a time.
func (s *Service) TookOver(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := View{svc: s}.statsLocked()
	s.mu.note(mempool.HistoryEvent{Kind: mempool.ServiceAdopted, Text: fmt.Sprintf("took over from a service that died, within %v: %s, %s, %s, %s, %s",
		took.Round(10*time.Microsecond), count.Of(len(st.Pools), "pool"), count.Of(st.Sessions, "session"), count.Of(st.Buffers, "buffer"),
		count.Of(st.Leases, "lease"), count.Of(s.ledger.Channels.Len(), "channel"))}, nil)
}

// Adopt makes a service of what its predecessor has left: the descriptors in the store by their names, with the books. Adopt closes the
// descriptors of memory that the service does not need, also in the store. The predecessor's process is gone. The sessions of the books wait
// until their clients call [Service.Resume].
//
// Errors: those of [books.Read]; [mempool.ErrInvalid] if the books contradict themselves or the memory, [mempool.ErrUnavailable] for memory that
// ended with the predecessor.
func Adopt(c Config, files map[string]*os.File) (*Service, error) {
	from, err := books.Read(files[BooksName])
	if err != nil {
		return nil, err
	}
	l, err := ledger.Read(&from.Records, c.Limits)
	if err != nil {
		return nil, err
	}
	s := newStopped(c)
	s.ledger, s.epoch, s.began = l, from.Epoch, from.Began
	s.eventLog.Continue(l.Last.Event)
	s.descriptors.held.Store(int64(len(files)))
	for name := range files { // a predecessor may have made more than one in each millisecond
		digits, ours := strings.CutPrefix(name, filePrefix)
		if number, err := strconv.ParseUint(digits, 10, 64); err == nil && ours {
			s.descriptors.last.Store(max(s.descriptors.last.Load(), number))
		}
	}
	a := adoption{s, files, make(map[string]bool)}
	if err := a.adoptMemory(); err != nil {
		return nil, errors.Join(err, a.undo())
	}
	failpoint.At("adopt/channels")
	s.mu.Lock()
	defer s.freeAndUnlock()
	for name, f := range files {
		if !a.used[name] && strings.HasPrefix(name, filePrefix) {
			_ = f.Close() // it was only held
			s.descriptors.dropNow(name)
		}
	}
	failpoint.At("adopt/dropped")
	s.openBooks()
	s.resumeBy = time.Now().Add(s.resumeTime)
	a.adoptSessions()
	failpoint.At("adopt/sessions")
	a.adoptBlocks()
	failpoint.At("adopt/blocks")
	return s, nil
}

// adoptMemory takes over all memory. Nobody else uses the service yet.
func (a *adoption) adoptMemory() error {
	if err := a.adoptPools(); err != nil {
		return err
	}
	failpoint.At("adopt/pools")
	if err := a.adoptTimelines(); err != nil {
		return err
	}
	failpoint.At("adopt/timelines")
	return a.adoptChannels()
}

// undo gives back the memory that was taken over.
func (a *adoption) undo() error {
	var errs []error
	for _, p := range a.pools.all {
		if p.backing != nil {
			errs = append(errs, p.backing.Close())
		}
	}
	for _, t := range a.ledger.Timelines {
		errs = append(errs, a.timelines.Remove(t)())
	}
	for _, ch := range a.channels.all {
		ch.Free()
	}
	a.eventLog.Close()
	a.memory.Close()
	return errors.Join(errs...)
}

// adoption is one call of Adopt.
type adoption struct {
	*Service
	files map[string]*os.File
	used  map[string]bool
}

// file returns a descriptor of the predecessor.
func (a *adoption) file(number uint64, what string, id uint64) (*os.File, error) {
	name := fileName(number)
	if a.used[name] = true; a.files[name] == nil {
		return nil, typed.Errorf(mempool.ErrUnavailable, "the memory of %s %d was not kept", what, id)
	}
	return a.files[name], nil
}

func (a *adoption) adoptPools() error {
	of := make(map[*ledger.Pool][]*ledger.Block)
	for b := range a.ledger.Blocks.All() {
		of[b.Pool] = append(of[b.Pool], b)
	}
	for id, rec := range a.ledger.Pools {
		if !rec.Info.Kind.CanAdopt() {
			a.inheritBlocks(rec, of[rec])
			continue
		}
		f, err := a.file(rec.File, "pool", id)
		if err != nil {
			return err
		}
		var at []mempool.Place
		for _, b := range of[rec] {
			at = append(at, mempool.Place{At: b.Place, Size: b.Size})
		}
		backing, all, err := mempool.AdoptBacking(rec.Info.Kind, f, at, a.memory)
		if err != nil {
			return fmt.Errorf("pool %q: %w", rec.Info.Name, err)
		}
		a.pools.add(rec, backing)
		for i, b := range of[rec] {
			a.blocks.Set(b.ID, &blockMemory{Allocation: all[i]})
		}
	}
	return nil
}

// inheritBlocks takes over the blocks of a pool of a kind that a process cannot adopt as a whole.
func (a *adoption) inheritBlocks(rec *ledger.Pool, blocks []*ledger.Block) {
	p := a.pools.add(rec, nil)
	p.aged, p.files = true, make(map[uint64]*inheritedFile)
	rec.File = 0
	for _, b := range blocks {
		memory := &inheritedMemory{}
		a.blocks.Set(b.ID, &blockMemory{Allocation: memory})
		k := p.files[b.Place]
		if k == nil {
			f, err := a.file(cmp.Or(b.Place, ledger.PlaceLost), "block", b.ID)
			if err != nil {
				b.Place, p.lost = ledger.PlaceLost, true
				continue
			}
			k = &inheritedFile{file: f}
			p.files[b.Place] = k
		}
		k.blocks++
		k.bytes += b.Size
		memory.export = exportOf(a.ledger.Exports[b.ID], b.Place, k.file)
	}
}

func (a *adoption) adoptTimelines() error {
	for id, t := range a.ledger.Timelines {
		f, err := a.file(t.File, "timeline", id)
		if err != nil {
			return err
		}
		if err := a.timelines.Adopt(t, f); err != nil {
			return err
		}
	}
	return nil
}

func (a *adoption) adoptChannels() error {
	cs := &a.channels
	for id, rec := range a.ledger.Channels.After(0) {
		file := func(number uint64) (*os.File, error) { return a.file(number, "channel", id) }
		stream, err := streams.Adopt(a.ledger, &a.timelines, rec, file, a.mu.note)
		if err != nil {
			return fmt.Errorf("channel %q: %w", rec.Info.Name, err)
		}
		cs.all[id] = &channel{Stream: stream, svc: a.Service}
		if p := a.pools.of(rec.Pool); p != nil {
			p.demand.streams = true
		}
	}
	return nil
}

// adoptSessions makes the sessions, and ends those whose process is gone.
func (a *adoption) adoptSessions() {
	for _, table := range []*ledger.Index[uint64, *ledger.Session]{&a.ledger.Sessions, &a.ledger.Ended} {
		for rec := range table.All() {
			a.sessions[rec.ID] = &Session{svc: a.Service, rec: rec, told: true, over: make(chan struct{}), reclaimed: make(chan struct{})}
		}
	}
	for rec := range a.ledger.Ended.All() {
		s := a.sessions[rec.ID]
		close(s.over)
		s.ending = &ending{Session: s, how: mempool.SessionLost, at: time.Now()}
		for b := range a.ledger.Blocks.All() {
			if slices.Contains(slices.Collect(b.AllLeft()), rec) {
				s.ending.held = append(s.ending.held, b)
			}
		}
		s.ending.lingerLocked(a.processGone(rec.Peer, s.reclaimed))
	}
	for rec := range a.ledger.Sessions.All() {
		s := a.sessions[rec.ID]
		s.absence = &absence{s, make(chan struct{})}
		a.drains.Go(s.absence.end) // the client may be back before the goroutine runs
	}
	for l := range a.ledger.Leases.All() {
		if l.Write && l.Buffer.Divided() {
			a.pools.of(l.Buffer.Block.Pool).demand.dividedBy(a.sessionOf(l.Session))
		}
	}
}

// adoptBlocks goes on with what the predecessor was doing with its free blocks.
func (a *adoption) adoptBlocks() {
	for b := range a.ledger.Blocks.All() {
		p := a.pools.of(b.Pool)
		left := slices.Collect(b.AllLeft())
		switch {
		case b.State == ledger.BlockFreeing || b.State == ledger.BlockDraining || b.State == ledger.BlockRecalling && b.Mapped.Len() == 0:
			p.queueFree(b)
		case int(b.Holds) > len(left): // it had too many fences
			a.draining.await(b, func() { p.endHoldLocked(b) })
		}
	}
	if a.ledger.Channels.Len() > 0 {
		a.channels.watchLocked()
	}
	for rec := range a.ledger.Channels.All() {
		a.channels.of(rec).tidyLocked()
	}
	for _, p := range slices.Collect(maps.Values(a.pools.all)) {
		if p.lost {
			p.loseLocked()
		}
		if p.rec.Closing {
			p.retire(p.rec.Cached, false)
			p.rec.Closed = false
			p.closeIfEmpty()
		}
	}
}

// loseLocked ends what was in the memory that a predecessor's process took with it.
func (p *Pool) loseLocked() {
	svc, n := p.svc, 0
	for b := range svc.ledger.Buffers.All() {
		if b.Block.Pool == p.rec && b.Block.Place == ledger.PlaceLost && !b.Failed {
			n++
			b.Fail("") // a client hears of it when it takes its session up
		}
	}
	if n > 0 {
		svc.mu.note(mempool.HistoryEvent{Kind: mempool.DriverError, Count: n, Text: fmt.Sprintf(
			"%d buffers of pool %q are lost: memory of kind %s ends with the process of the service", n, p.rec.Info.Name, p.rec.Info.Kind)}, p.rec)
	}
	svc.channels.endLocked(p.rec, "its memory ended with the process of the service")
	p.retireLost()
}

// ResumeBy returns until when the sessions of a predecessor wait for their clients; a time in the past: none waits.
func (s *Service) ResumeBy() time.Time { return s.resumeBy }

// Absent counts the sessions of a predecessor whose clients may still come back: all, those of the peer's user, and those of its process.
func (s *Service) Absent(p mempool.Peer) (all, user, process int) {
	if time.Now().After(s.resumeBy) {
		return 0, 0, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.sessions {
		if of.absence == nil {
			continue
		}
		all++
		if of.rec.Peer.UID == p.UID {
			user++
			if of.rec.Peer.PID == p.PID {
				process++
			}
		}
	}
	return all, user, process
}

// end ends the session if its client does not come back.
func (a *absence) end() {
	s, stop := a.Session, make(chan struct{})
	defer close(stop)
	gone := s.svc.processGone(s.rec.Peer, stop)
	why := fmt.Sprintf("its client did not come back within %v to the service that took over", s.svc.resumeTime)
	select {
	case <-a.back:
		return
	case <-gone:
		why = "its process ended before it came back to the service that took over"
	case <-time.After(time.Until(s.svc.resumeBy)):
	case <-s.svc.closing:
		return
	}
	s.svc.mu.Lock()
	late := s.absence == a
	if late {
		s.absence = nil // the client comes too late from now on
	}
	s.svc.mu.Unlock()
	if late {
		<-s.End(mempool.SessionLost, why, gone)
	}
}

// Resume gives a session of a predecessor to the connection of its client. The argument `notify` is that of OpenSession. The result `done` is
// the number of the session's last packet that changed something.
//
// Errors: [mempool.ErrStale] if there is no such session, or it is another process's, or the token is wrong; [mempool.ErrClosed].
func (s *Service) Resume(p mempool.Peer, id uint64, token mempool.Epoch, notify func(Notice)) (session *Session, done uint64, err error) {
	s.mu.Lock()
	defer s.freeAndUnlock()
	of := s.sessions[id]
	if s.closed {
		return nil, 0, errShutdown
	}
	if of == nil || of.absence == nil || of.rec.Ended || of.rec.Token != token || of.rec.Peer.UID != p.UID || of.rec.Peer.Process != p.Process {
		return nil, 0, typed.Errorf(mempool.ErrStale, "there is no session %d that process %d can take up again: connect without it", id, p.PID)
	}
	close(of.absence.back)
	of.absence, of.notify = nil, notify
	var recalled, failed []uint64
	for id, b := range of.rec.Mapped {
		if b.State == ledger.BlockRecalling {
			recalled = append(recalled, id)
		}
	}
	for _, l := range of.rec.Leases {
		if l.Buffer.Failed {
			failed = append(failed, l.Buffer.ID)
		}
	}
	of.tellLocked(Recall{Blocks: recalled})
	of.tellLocked(Failed{Buffers: failed})
	var came MembersCame
	for m := range of.rec.Members { // the notices about other members may be lost
		for _, o := range m.Others() {
			came = append(came, s.channels.of(m.Channel).came(o))
		}
	}
	of.tellLocked(came) // one notice: the client reads none before the answer to its hello
	failpoint.At("resume/session")
	return of, of.rec.Done, nil
}

// processGone returns a channel that is closed when the process of a peer of a predecessor is gone. It stays open after `stop` is closed.
// A process of another PID namespace counts as gone after resumeTime.
func (s *Service) processGone(p mempool.Peer, stop <-chan struct{}) <-chan struct{} {
	gone := make(chan struct{})
	var f *os.File
	var late <-chan time.Time
	if p.PID == 0 { // the kernel does not say which process it is
		late = time.After(s.resumeTime)
	} else {
		fd, err := unix.PidfdOpen(int(p.PID), unix.O_NONBLOCK)
		f = os.NewFile(uintptr(fd), "pidfd") // nil: there is no process
		var st unix.Stat_t
		if err != nil || unix.Fstat(fd, &st) != nil || p.Process != 0 && p.Process != st.Ino && p.Process != uint64(p.PID) {
			_ = f.Close()
			close(gone)
			return gone
		}
		s.drains.Go(func() {
			ended := func(fd uintptr) bool {
				n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
				return err == nil && n > 0
			}
			if raw, err := f.SyscallConn(); err == nil && raw.Read(ended) == nil {
				close(gone)
			}
		})
	}
	s.drains.Go(func() {
		select {
		case <-late:
			close(gone)
		case <-gone:
		case <-stop:
		case <-s.closing:
		}
		_ = f.Close() // ends the wait of the other goroutine
	})
	return gone
}
