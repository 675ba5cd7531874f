package service

import (
	"context"
	"encoding/binary"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/mempool"
)

// shelf is a Store that keeps descriptors for the next service of a test.
type shelf struct {
	mu    sync.Mutex
	files map[string]*os.File
}

func (s *shelf) Keep(name string, f *os.File) error {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.Drop(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[name] = os.NewFile(uintptr(fd), name)
	return nil
}

func (s *shelf) Drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.files[name]; f != nil {
		_ = f.Close()
		delete(s.files, name)
	}
}

// taken returns descriptors for a service that takes over: the shelf keeps its own.
func (s *shelf) taken(t *testing.T) map[string]*os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]*os.File)
	for name, f := range s.files {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
		out[name] = os.NewFile(uintptr(fd), name)
	}
	return out
}

// succession is a service that a test abandons, as if it was killed, and another takes over.
type succession struct {
	*testing.T
	shelf *shelf
	svc   *Service
}

func newSuccession(t *testing.T) *succession {
	s := &succession{T: t, shelf: &shelf{files: make(map[string]*os.File)}}
	s.svc = New(Config{Store: s.shelf})
	t.Cleanup(func() {
		s.svc.Close()
		for name := range s.shelf.taken(t) {
			s.shelf.Drop(name)
		}
	})
	return s
}

// takeOver makes another service of what the present one has left. The present one does nothing any more that the next one sees.
func (s *succession) takeOver() error {
	s.Helper()
	files := s.shelf.taken(s.T)
	was := s.svc
	was.mu.Lock()
	was.descriptors.store, was.mu.commit, was.mu.check = &shelf{files: make(map[string]*os.File)}, nil, nil
	was.mu.Unlock()
	s.Cleanup(was.Close)
	next, err := Adopt(Config{Store: s.shelf, ResumeTime: time.Minute}, files)
	if err == nil {
		s.svc = next
	}
	return err
}

func (s *succession) resume(of *Session) *Session {
	s.Helper()
	token, lasts := of.Token()
	require.True(s, lasts)
	again, _, err := s.svc.Resume(of.rec.Peer, of.ID(), token, func(Notice) {})
	require.NoError(s, err)
	return again
}

// stopped is a Store that takes nothing until it goes on.
type stopped struct {
	*shelf
	asked, on chan struct{}
}

func (s stopped) Keep(name string, f *os.File) error {
	s.asked <- struct{}{}
	<-s.on
	return s.shelf.Keep(name, f)
}

func TestOnlyRequestsThatNeedTheStoreWaitForOneThatIsStopped(t *testing.T) {
	for what, request := range map[string]func(s *Session, pool uint64) error{
		"make a channel": func(s *Session, pool uint64) error {
			_, err := s.MakeChannel(mempool.ChannelSpec{Name: "other", Pool: pool, Mode: mempool.WorkQueue, Capacity: 2})
			return err
		},
		"join a channel by its name": func(s *Session, _ uint64) error {
			_, err := s.JoinChannel(t.Context(), "c", MemberSpec{Role: Consumer}, 0)
			return err
		},
		"join a channel by its id": func(s *Session, _ uint64) error {
			found, err := s.FindChannel(t.Context(), "c", 0)
			if err == nil {
				_, err = s.Channel(found.ID).Join(MemberSpec{Role: Producer})
			}
			return err
		},
		"make a timeline": func(s *Session, _ uint64) error {
			_, _, err := s.Timeline()
			return err
		},
		"make a pool": func(s *Session, _ uint64) error {
			_, err := s.CreatePool(mempool.PoolSpec{Name: "other", Kind: mempool.Host, MaxBytes: 1 << 20})
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := newSuccession(t)
			session, err := s.svc.OpenSession(mempool.Self(), "a", func(Notice) {})
			require.NoError(t, err)
			p := createPool(t, session, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 20})
			_, err = session.MakeChannel(mempool.ChannelSpec{Name: "c", Pool: p.Info().ID, Mode: mempool.WorkQueue, Capacity: 2})
			require.NoError(t, err)
			store := stopped{s.shelf, make(chan struct{}, 8), make(chan struct{})}
			s.svc.descriptors.store = store
			done := make(chan error, 1)
			go func() { done <- request(session, p.Info().ID) }()
			<-store.asked
			s.svc.Stats() // waits for ever if the request holds the lock
			require.Empty(t, done)
			close(store.on)
			require.NoError(t, <-done)
			require.NoError(t, s.takeOver())
			s.resume(session)
		})
	}
}

func TestAServiceSaysThatItsStoreKeepsNoMoreDescriptors(t *testing.T) {
	s := newSuccession(t)
	session, err := s.svc.OpenSession(mempool.Self(), "a", func(Notice) {})
	require.NoError(t, err)
	p := createPool(t, session, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 20})
	s.svc.descriptors.held.Store(maxHeld - 1)
	for _, name := range []string{"a", "b"} { // two descriptors for each
		_, err := session.MakeChannel(mempool.ChannelSpec{Name: name, Pool: p.Info().ID, Mode: mempool.Broadcast, Capacity: 2})
		require.NoError(t, err)
	}
	s.svc.Guarded(7) // another guard changes nothing
	assert.Equal(t, mempool.GuardLost, s.svc.Stats().Guard)
	s.svc.descriptors.held.Store(8)
}

func TestConsumersThatWaitForTheirChannelKeepNothingInTheStore(t *testing.T) {
	const waiting = 20
	s := newSuccession(t)
	maker, err := s.svc.OpenSession(mempool.Self(), "a", func(Notice) {})
	require.NoError(t, err)
	p := createPool(t, maker, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 20})
	_, _, err = maker.Timeline()
	require.NoError(t, err)
	held := s.svc.descriptors.held.Load()
	ends := make(chan error, waiting)
	for range waiting {
		session, err := s.svc.OpenSession(mempool.Self(), "b", func(Notice) {})
		require.NoError(t, err)
		go func() {
			_, err := session.JoinChannel(t.Context(), "c", MemberSpec{Role: Consumer}, time.Minute)
			ends <- err
		}()
	}
	require.Eventually(t, func() bool {
		s.svc.mu.Lock()
		defer s.svc.mu.Unlock()
		return len(s.svc.channels.pending["c"]) == waiting
	}, 20*time.Second, time.Millisecond)
	assert.Equal(t, held, s.svc.descriptors.held.Load())
	_, err = maker.MakeChannel(mempool.ChannelSpec{Name: "c", Pool: p.Info().ID, Mode: mempool.Broadcast, Full: mempool.Block, Capacity: 2})
	require.NoError(t, err)
	s.svc.mu.Lock()
	consumers := len(s.svc.channels.of(s.svc.ledger.ChannelNames["c"]).MembersOf(Consumer))
	s.svc.mu.Unlock()
	assert.Equal(t, waiting, consumers, "producers wait for each of them from the first frame")
	for range waiting {
		require.NoError(t, <-ends)
	}
	assert.Equal(t, held+2+waiting, s.svc.descriptors.held.Load(), "the channel has two files, and each consumer one")
}

func TestAServiceTakesOverPoolsLeasesNamesAndTheirContent(t *testing.T) {
	s := newSuccession(t)
	a, err := s.svc.OpenSession(mempool.Self(), "a", func(Notice) {})
	require.NoError(t, err)
	p := createPool(t, a, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 20})
	named, held, freed := allocate(t, a, p, 4096), allocate(t, a, p, 8192), allocate(t, a, p, 4096)
	require.NoError(t, memory(named).Fill(0, 4096, 7))
	_, err = a.Publish(named.rec.ID, mempool.Publication{Name: "n", Keep: true})
	require.NoError(t, err)
	_, _, err = a.Timeline()
	require.NoError(t, err)
	require.NoError(t, a.SealTimeline())
	a.BeginRequest(Request{Packet: 9, Query: 5})
	release(t, freed)
	require.NoError(t, a.Release(false, []mempool.Fence{{Timeline: a.rec.Timeline.ID, Word: 1, Value: 1}}, held.rec.ID))

	require.NoError(t, s.takeOver())
	checkBooks(t, s.svc)
	again := s.resume(a)
	assert.EqualValues(t, 9, again.rec.Done)
	_, did := again.Answer(5)
	assert.True(t, did)
	again.Answered([]uint32{5})
	_, did = again.Answer(5)
	assert.False(t, did)
	g, err := again.Get(context.Background(), "n", false, Known{}, 0)
	require.NoError(t, err)
	assert.EqualValues(t, 7, memory(g.Lease).Bytes()[4095])
	fresh, err := again.Allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(4096), 0, 0)
	require.NoError(t, err)
	assert.Greater(t, fresh.Grant.ID, named.rec.ID, "no id comes again")
	assert.Equal(t, s.svc.Epoch(), a.svc.Epoch())
	assert.WithinDuration(t, a.svc.began, s.svc.began, 0, "times in the records count from it")
}

func TestAProcessOfAnotherPIDNamespaceHasTheTimeToTakeItsSessionUp(t *testing.T) {
	s := newSuccession(t)
	peer := mempool.Self()
	peer.PID = 0 // as the kernel says of such a process
	a, err := s.svc.OpenSession(peer, "a", func(Notice) {})
	require.NoError(t, err)
	require.NoError(t, s.takeOver())
	gone := s.svc.processGone(peer, nil)
	select {
	case <-gone:
		t.Error("nobody knows that")
	default:
	}
	s.resume(a)
}

func TestOnlyTheProcessWithTheTokenTakesASessionUpAndOnce(t *testing.T) {
	s := newSuccession(t)
	a, err := s.svc.OpenSession(mempool.Self(), "a", func(Notice) {})
	require.NoError(t, err)
	token, _ := a.Token()
	_, _, err = s.svc.Resume(a.rec.Peer, a.ID(), token, func(Notice) {})
	require.ErrorIs(t, err, mempool.ErrStale, "its client has it")
	require.NoError(t, s.takeOver())
	other, stranger, guessed := a.rec.Peer, a.rec.Peer, token
	other.Process++
	stranger.UID++
	guessed[3]++
	for what, try := range map[string]func() error{
		"another process":   func() error { _, _, err := s.svc.Resume(other, a.ID(), token, nil); return err },
		"another user":      func() error { _, _, err := s.svc.Resume(stranger, a.ID(), token, nil); return err },
		"a guessed token":   func() error { _, _, err := s.svc.Resume(a.rec.Peer, a.ID(), guessed, nil); return err },
		"no token":          func() error { _, _, err := s.svc.Resume(a.rec.Peer, a.ID(), mempool.Epoch{}, nil); return err },
		"another's session": func() error { _, _, err := s.svc.Resume(a.rec.Peer, a.ID()+1, token, nil); return err },
	} {
		require.ErrorIs(t, try(), mempool.ErrStale, what)
	}
	s.resume(a)
	_, _, err = s.svc.Resume(a.rec.Peer, a.ID(), token, nil)
	require.ErrorIs(t, err, mempool.ErrStale, "a second time")
}

func TestASessionWhoseClientDoesNotComeBackEnds(t *testing.T) {
	s := newSuccession(t)
	gone := mempool.Self()
	gone.PID, gone.Process = 1<<30, 1<<40 // no process has it
	a, err := s.svc.OpenSession(gone, "a", func(Notice) {})
	require.NoError(t, err)
	maker := open(t, s.svc)
	p := createPool(t, maker, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 20})
	allocate(t, a, p, 4096)
	require.NoError(t, s.takeOver())
	s.svc.mu.Lock()
	again := s.svc.sessions[a.ID()]
	s.svc.mu.Unlock()
	if again != nil {
		<-again.over
	}
	assert.Eventually(t, func() bool { return s.svc.Stats().Leases == 0 }, time.Minute, time.Millisecond)
}

func TestAGrantThatIsAnsweredAgainHasTheVersionOfItsName(t *testing.T) {
	s := newSuccession(t)
	a := open(t, s.svc)
	p := createPool(t, a, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 20})
	publish := func(of *Session) {
		l, err := of.Allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(4096), 0, 0)
		require.NoError(t, err)
		_, err = of.Publish(l.Lease.rec.ID, mempool.Publication{Name: "n", Replace: true, Keep: true})
		require.NoError(t, err)
		require.NoError(t, of.Release(false, nil, l.Lease.rec.ID))
	}
	publish(a)
	written, err := a.Get(context.Background(), "n", true, Known{}, 0)
	require.NoError(t, err)
	require.NoError(t, s.takeOver())
	again := s.resume(a)
	g, err := Answer{again, written.Lease.rec.ID}.Granted()
	require.NoError(t, err)
	assert.EqualValues(t, 1, g.Version, "a write lease")
	require.NoError(t, again.Release(false, nil, written.Lease.rec.ID))
	read, err := again.Get(context.Background(), "n", false, Known{}, 0)
	require.NoError(t, err)
	publish(again)
	g, err = Answer{again, read.Lease.rec.ID}.Granted()
	require.NoError(t, err)
	assert.EqualValues(t, 1, g.Version, "the name is replaced")
}

func TestMemoryThatWasNotKeptIsLostAndItsPoolGoesOn(t *testing.T) {
	s := newSuccession(t)
	a := open(t, s.svc)
	p, _ := fakePool(t, a, 1<<20)
	held, free := allocate(t, a, p, 512), allocate(t, a, p, 1024)
	release(t, free)
	_, err := a.Publish(held.rec.ID, mempool.Publication{Name: "n", Keep: true})
	require.NoError(t, err)
	require.NoError(t, s.takeOver())
	again := s.resume(a)
	_, err = again.Get(context.Background(), "n", false, Known{}, 0)
	require.ErrorIs(t, err, mempool.ErrProducerDied)
	assert.ErrorContains(t, err, "ended with the process of the service")
	g, err := Answer{again, held.rec.ID}.Granted()
	require.NoError(t, err)
	_, _, err = g.Lease.Export()
	require.ErrorIs(t, err, mempool.ErrUnavailable)
	stats := s.svc.Stats()
	assert.EqualValues(t, 512, stats.Pools[0].Reserved, "the free block is not used again")
	require.NoError(t, again.Unpublish("n"))
	require.NoError(t, again.Release(false, nil, held.rec.ID))
	assert.Zero(t, s.svc.Stats().Pools[0].Reserved)
	fresh, err := again.Allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(512), 0, 0)
	require.NoError(t, err)
	_, first, err := fresh.Lease.Export()
	require.NoError(t, err)
	assert.True(t, first)
	checkBooks(t, s.svc)
}

func (s *shelf) has(number uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files[fileName(number)] != nil
}

// exported returns the number of the old pool that the export of a lease names.
func exported(t *testing.T, l Lease) uint64 {
	x, _, err := l.Export()
	require.NoError(t, err)
	require.Len(t, x.Files, 1)
	require.Len(t, x.Data, 9)
	return binary.LittleEndian.Uint64(x.Data[1:])
}

func TestBlocksOfAnOldPoolAreUsedAgainAndGivenBackTogether(t *testing.T) {
	s := newSuccession(t)
	a := open(t, s.svc)
	p := createPool(t, a, mempool.PoolSpec{Name: "kept", Kind: fake, MaxBytes: 2560})
	old := p.rec.File
	assert.Equal(t, binary.LittleEndian.AppendUint64(nil, old), p.Export().Data)
	held, free := allocate(t, a, p, 512), allocate(t, a, p, 512)
	release(t, free)
	require.NoError(t, s.takeOver())
	again := s.resume(a)
	p, err := again.FindPool(p.rec.Info.ID)
	require.NoError(t, err)
	assert.Empty(t, p.Export().Files, "each block brings its own")
	get := func(n uint64) Lease {
		l, err := again.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(n), 0)
		require.NoError(t, err)
		return l
	}
	reused := get(512)
	assert.Equal(t, free.rec.Buffer.Block.ID, reused.rec.Buffer.Block.ID)
	assert.Equal(t, old, exported(t, reused))
	release(t, reused)
	fresh := get(1024)
	assert.Greater(t, exported(t, fresh), old, "numbers never come again")
	checkBooks(t, s.svc)
	require.NoError(t, again.Dropped([]uint64{reused.rec.Buffer.Block.ID}))
	_, err = again.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1024), 0)
	require.ErrorIs(t, err, mempool.ErrLimit, "the memory of the free block comes back only with all of the old pool")
	assert.True(t, s.shelf.has(old))

	require.NoError(t, again.Release(false, nil, held.rec.ID))
	release(t, get(1024))
	require.Eventually(t, func() bool { return !s.shelf.has(old) }, time.Minute, time.Millisecond, "the last block of the old pool is freed")
	assert.EqualValues(t, 1024+1024, s.svc.Stats().Pools[0].Reserved)

	last := exported(t, fresh)
	require.NoError(t, s.takeOver())
	once := s.resume(again)
	require.NoError(t, once.DestroyPool(p.rec.Info.ID))
	assert.True(t, s.shelf.has(last))
	require.NoError(t, once.Release(false, nil, fresh.rec.ID))
	require.NoError(t, once.Dropped([]uint64{fresh.rec.Buffer.Block.ID}))
	require.Eventually(t, func() bool { return !s.shelf.has(last) }, time.Minute, time.Millisecond)
	assert.Empty(t, s.svc.Stats().Pools)
}

func TestASessionThatEndsWhileItsPoolIsMadeLeavesNoAnswer(t *testing.T) {
	s := newSuccession(t)
	session, err := s.svc.OpenSession(mempool.Self(), "a", func(Notice) {})
	require.NoError(t, err)
	other, err := s.svc.OpenSession(mempool.Self(), "b", func(Notice) {})
	require.NoError(t, err)
	store := stopped{s.shelf, make(chan struct{}, 8), make(chan struct{})}
	s.svc.descriptors.store = store
	session.BeginRequest(Request{Packet: 3, Query: 5})
	made := make(chan error, 1)
	go func() {
		_, err := session.CreatePool(mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 20})
		made <- err
	}()
	<-store.asked
	session.End(mempool.SessionLost, "", nil)
	close(store.on)
	<-made
	require.NoError(t, s.takeOver())
	s.resume(other)
}
