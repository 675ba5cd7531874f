package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/ration"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/eventlog"
)

// happened returns the events of a kind.
func happened(t testing.TB, svc *Service, kind mempool.EventKind) (events []mempool.HistoryEvent) {
	t.Helper()
	page := svc.eventLog.Read(0, eventlog.Capacity, func(e *eventlog.Entry) bool { return e.Kind == kind })
	return page.Events
}

// one returns the only event of a kind.
func one(t testing.TB, svc *Service, kind mempool.EventKind) mempool.HistoryEvent {
	t.Helper()
	events := happened(t, svc, kind)
	require.Len(t, events, 1, kind)
	assert.NotEmpty(t, events[0].Text)
	assert.Positive(t, events[0].Count)
	return events[0]
}

// begin makes a session of another process, with the name of its program.
func begin(t testing.TB, svc *Service, p mempool.Peer, program string) *Session {
	t.Helper()
	s, err := svc.OpenSession(p, program, func(Notice) {})
	require.NoError(t, err)
	return s
}

func TestAReaderOfEventsWaitsForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := New(Config{})
		s := begin(t, svc, mempool.Self(), "reader")
		after := svc.LastEvent()
		type came struct {
			page mempool.EventPage
			err  error
		}
		pages := make(chan came, 2)
		wait := func() {
			go func() {
				page, err := svc.Events(t.Context(), after, 9)
				pages <- came{page, err}
			}()
			go func() {
				page, err := s.View().Events(t.Context(), after, 9, patience)
				pages <- came{page, err}
			}()
			synctest.Wait()
			assert.Empty(t, pages)
		}
		wait()
		news := begin(t, svc, mempool.Self(), "news")
		svc.mu.Lock()
		news.noteUse()
		svc.mu.Unlock()
		for range 2 {
			c := <-pages
			require.NoError(t, c.err)
			require.Len(t, c.page.Events, 1)
			assert.Equal(t, "news", c.page.Events[0].Program)
			after = c.page.Next
		}
		begun := time.Now()
		page, err := s.View().Events(t.Context(), after, 9, time.Minute)
		require.NoError(t, err)
		assert.Empty(t, page.Events, "nothing happened in that time")
		assert.Equal(t, time.Minute, time.Since(begun))
		ctx, cancel := context.WithCancelCause(t.Context())
		bored := errors.New("bored")
		cancel(bored)
		_, err = svc.Events(ctx, after, 9)
		assert.ErrorIs(t, err, bored)
		_, err = s.View().Events(t.Context(), after+1, 9, 0)
		assert.ErrorIs(t, err, mempool.ErrInvalid, "there is no such number")
		svc.Close() // ends sessions, with an event for each
		_, err = svc.Events(t.Context(), svc.LastEvent(), 9)
		assert.ErrorIs(t, err, mempool.ErrClosed)
		_, err = s.View().Events(t.Context(), after, 9, 0)
		assert.ErrorIs(t, err, mempool.ErrClosed)
	})
}

func TestAReaderGetsOnlyEventsThatItMayBeToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := New(Config{MayCreate: func(mempool.Peer) bool { return true }})
		defer svc.Close()
		stranger := mempool.Self()
		stranger.UID++
		stranger.Groups, stranger.GID = nil, stranger.GID+1
		s := begin(t, svc, stranger, "stranger")
		after := svc.LastEvent()
		came := make(chan mempool.EventPage, 1)
		go func() {
			page, err := s.View().Events(t.Context(), after, 9, time.Hour)
			assert.NoError(t, err)
			came <- page
		}()
		synctest.Wait()
		fakePool(t, begin(t, svc, mempool.Self(), "owner"), 1<<20)
		synctest.Wait()
		assert.Empty(t, came)
		createPool(t, s, mempool.PoolSpec{Name: "its own", Kind: fake, MaxBytes: 1 << 20})
		page := <-came
		require.NotEmpty(t, page.Events)
		for _, e := range page.Events {
			assert.Equal(t, stranger.UID, e.UID)
		}
	})
}

func TestFewRequestsOfASessionWaitForEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := New(Config{})
		defer svc.Close()
		s := begin(t, svc, mempool.Self(), "greedy")
		after := svc.LastEvent()
		ctx, cancel := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		for range MaxEventWaits {
			waiting.Go(func() {
				_, err := s.View().Events(ctx, after, 9, time.Hour)
				assert.ErrorIs(t, err, context.Canceled)
			})
		}
		synctest.Wait()
		_, err := s.View().Events(t.Context(), after, 9, time.Hour)
		assert.ErrorIs(t, err, mempool.ErrLimit)
		_, err = s.View().Events(t.Context(), after, 9, 0)
		assert.NoError(t, err, "this one does not wait")
		cancel()
		waiting.Wait()
		_, err = s.View().Events(t.Context(), after, 9, time.Second)
		assert.NoError(t, err)
	})
}

func TestAPoolAndItsChannelsHaveAHistory(t *testing.T) {
	svc := newService(t)
	s := begin(t, svc, mempool.Self(), "maker")
	p, _ := fakePool(t, s, 1<<20)
	made := one(t, svc, mempool.PoolMade)
	assert.Equal(t, p.rec.Info.Name, made.Pool)
	assert.EqualValues(t, 1<<20, made.Bytes)
	assert.Equal(t, []any{s.rec.ID, s.rec.Peer.PID, s.rec.Peer.UID, "maker"}, []any{made.Session, made.PID, made.UID, made.Program})
	assert.Contains(t, made.Text, `"maker"`)
	for _, name := range []string{"a", "b"} {
		_, err := s.MakeChannel(mempool.ChannelSpec{Name: name, Pool: p.rec.Info.ID, Capacity: 1})
		require.NoError(t, err)
	}
	require.NoError(t, s.Channel(svc.ledger.ChannelNames["a"].Info.ID).Close())
	assert.Equal(t, "a", one(t, svc, mempool.ChannelClosed).Channel)
	require.NoError(t, s.DestroyPool(p.rec.Info.ID))
	assert.Equal(t, "b", happened(t, svc, mempool.ChannelClosed)[1].Channel)
	assert.Len(t, happened(t, svc, mempool.ChannelMade), 2)
	assert.Equal(t, p.rec.Info.Name, one(t, svc, mempool.PoolDestroyed).Pool)
}

func TestASessionsEndSaysHowAndWhatItHad(t *testing.T) {
	for _, how := range mempool.SessionEndings() {
		svc := newService(t)
		s := begin(t, svc, mempool.Self(), "worker\x1b[2J")
		p, _ := fakePool(t, s, 1<<20)
		allocate(t, s, p, 512)
		<-s.End(how, "a reason", nil)
		e := one(t, svc, mempool.SessionEnded)
		assert.Equal(t, how, e.Ending)
		assert.EqualValues(t, 512, e.Bytes)
		assert.Contains(t, e.Text, "a reason")
		assert.NotContains(t, e.Text, "\x1b", "a terminal is not told what to do")
		assert.Equal(t, s.rec.ID, one(t, svc, mempool.SessionBegan).Session)
	}
}

func TestASessionThatOnlyLooksIsNoNews(t *testing.T) {
	svc := newService(t)
	for _, how := range []mempool.SessionEnding{mempool.SessionLeft, mempool.SessionLost, mempool.SessionShutdown} {
		s := begin(t, svc, mempool.Self(), "top")
		s.View().Stats()
		_, err := s.View().Sessions("", 9, nil)
		require.NoError(t, err)
		_, err = s.View().Events(t.Context(), 0, 9, 0)
		require.NoError(t, err)
		<-s.End(how, "", nil)
		assert.Zero(t, svc.LastEvent(), how)
		assert.EqualValues(t, 1, svc.Counts().Endings[how], "it is counted all the same")
	}
	for _, how := range []mempool.SessionEnding{mempool.SessionClosed, mempool.SessionFailed} {
		<-begin(t, svc, mempool.Self(), "top").End(how, "", nil)
	}
	assert.Len(t, happened(t, svc, mempool.SessionEnded), 2, "an operator must know of these")
	assert.Empty(t, happened(t, svc, mempool.SessionBegan))
}

func TestABeginningIsToldOfAtTheFirstUseOfMemoryOrAChannel(t *testing.T) {
	svc := newService(t)
	maker := begin(t, svc, mempool.Self(), "maker")
	p, _ := fakePool(t, maker, 1<<20)
	began := one(t, svc, mempool.SessionBegan)
	assert.Less(t, began.Number, one(t, svc, mempool.PoolMade).Number)
	ch, err := maker.MakeChannel(mempool.ChannelSpec{Name: "frames", Pool: p.rec.Info.ID, Capacity: 2})
	require.NoError(t, err)
	l := allocate(t, maker, p, 512)
	publish(t, l, mempool.Publication{Name: "weights"})
	release(t, l)
	for what, use := range map[string]func(s *Session) error{
		"open a pool": func(s *Session) error { _, err := s.OpenPool(t.Context(), p.rec.Info.Name, 0); return err },
		"find a pool": func(s *Session) error { _, err := s.FindPool(p.rec.Info.ID); return err },
		"lease":       func(s *Session) error { _, err := s.Get(t.Context(), "weights", false, Known{}, 0); return err },
		"join":        func(s *Session) error { _, err := s.Channel(ch.ID).Join(MemberSpec{Role: Consumer}); return err },
	} {
		s := begin(t, svc, mempool.Self(), what)
		require.NoError(t, use(s), what)
		require.NoError(t, use(s), what)
		told := happened(t, svc, mempool.SessionBegan)
		assert.Equal(t, what, told[len(told)-1].Program)
		<-s.End(mempool.SessionLeft, "", nil)
		ended := happened(t, svc, mempool.SessionEnded)
		assert.Equal(t, s.rec.ID, ended[len(ended)-1].Session)
		assert.Len(t, ended, len(told)-1, "each is told of once, and the maker is there")
	}
	closer, destroyer := begin(t, svc, mempool.Self(), "closer"), begin(t, svc, mempool.Self(), "destroyer")
	require.NoError(t, closer.Channel(ch.ID).Close())
	require.NoError(t, destroyer.DestroyPool(p.rec.Info.ID))
	told := happened(t, svc, mempool.SessionBegan)
	assert.Equal(t, []string{"closer", "destroyer"}, []string{told[len(told)-2].Program, told[len(told)-1].Program})
}

func TestNothingIsToldOfReclaimingNothing(t *testing.T) {
	svc := newService(t)
	s, reader := open(t, svc), open(t, svc)
	p, _ := fakePool(t, s, 1<<20)
	l := allocate(t, reader, p, 512)
	mapBlock(t, l)
	release(t, l)
	gone := make(chan struct{})
	reclaimed := reader.End(mempool.SessionLost, "", gone)
	close(gone)
	<-reclaimed
	assert.Empty(t, happened(t, svc, mempool.MemoryReclaimed), "it had mapped a block, and leased none")
	assert.EqualValues(t, 1, svc.Counts().Reclaims.Count)
}

func TestReclaimingAfterADeathSaysHowLongItTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s, doomed := open(t, svc), begin(t, svc, mempool.Self(), "doomed")
		p, _ := fakePool(t, s, 1<<20)
		mapBlock(t, allocate(t, doomed, p, 512))
		allocate(t, doomed, p, 1024)
		gone := make(chan struct{})
		reclaimed := doomed.End(mempool.SessionLost, "", gone)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Empty(t, happened(t, svc, mempool.MemoryReclaimed), "its process lives")
		close(gone)
		<-reclaimed
		e := one(t, svc, mempool.MemoryReclaimed)
		assert.Equal(t, time.Minute, e.Took)
		assert.EqualValues(t, 1536, e.Bytes)
		assert.Equal(t, mempool.SessionLost, e.Ending)
		<-open(t, svc).End(mempool.SessionLeft, "", make(chan struct{}))
		one(t, svc, mempool.MemoryReclaimed) // nothing was held for the other session's process
	})
}

func TestARefusalForWantOfRoomIsToldOfOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		hog, s := begin(t, svc, mempool.Self(), "hog"), begin(t, svc, mempool.Self(), "hungry")
		p, _ := fakePool(t, s, 1024)
		allocate(t, hog, p, 1024)
		refuse := func() {
			_, err := s.Allocate(t.Context(), p.rec.Info.ID, mempool.Bytes(512), 0, 0)
			require.ErrorIs(t, err, mempool.ErrLimit)
			s.Refused(err)
		}
		for range 5 {
			refuse()
		}
		e := one(t, svc, mempool.PoolFull)
		assert.Equal(t, p.rec.Info.Name, e.Pool)
		assert.Equal(t, s.rec.ID, e.Session)
		assert.Contains(t, e.Text, `"hog"`, "it says who has the most")
		time.Sleep(eventlog.Rest)
		refuse()
		again := happened(t, svc, mempool.PoolFull)
		require.Len(t, again, 2)
		assert.Equal(t, 5, again[1].Count, "those that were not told of count")
		assert.Empty(t, happened(t, svc, mempool.LimitMet))
	})
}

func TestALimitThatIsMetIsToldOf(t *testing.T) {
	svc := New(Config{Limits: Limits{SessionLeases: 1}})
	t.Cleanup(svc.Close)
	s := begin(t, svc, mempool.Self(), "greedy")
	p, _ := fakePool(t, s, 1<<20)
	allocate(t, s, p, 512)
	_, err := s.Allocate(t.Context(), p.rec.Info.ID, mempool.Bytes(512), 0, 0)
	require.ErrorIs(t, err, mempool.ErrLimit)
	s.Refused(err)
	s.Refused(err)
	assert.Contains(t, one(t, svc, mempool.LimitMet).Text, "session-leases")
	svc.Refused(&LimitError{Limit: "sessions", Max: 1, Who: "the service", What: "sessions", Have: 1, Advice: "close one"})
	assert.Len(t, happened(t, svc, mempool.LimitMet), 2, "another limit")
}

func TestWhoKeepsOthersWaitingForLongIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := New(Config{Patience: time.Minute})
		t.Cleanup(svc.Close)
		holder, s := begin(t, svc, mempool.Self(), "holder"), begin(t, svc, mempool.Self(), "waiter")
		p, _ := fakePool(t, s, 512)
		l := allocate(t, holder, p, 512)
		info := l.Grant()
		failed := make(chan error, 2)
		wait := func() {
			go func() {
				_, err := s.Lease(t.Context(), info.Buffer, info.Generation, false, 2*time.Minute)
				failed <- err
			}()
			go func() {
				_, err := s.Allocate(t.Context(), p.rec.Info.ID, mempool.Bytes(512), 2*time.Minute, 0)
				failed <- err
			}()
			synctest.Wait()
		}
		wait()
		time.Sleep(time.Minute - time.Nanosecond)
		assert.Empty(t, happened(t, svc, mempool.LeaseLong))
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		e := one(t, svc, mempool.LeaseLong)
		assert.Equal(t, holder.rec.ID, e.Session)
		assert.Equal(t, info.Buffer, e.Buffer)
		assert.Equal(t, p.rec.Info.Name, e.Pool)
		assert.Equal(t, time.Minute, e.Took)
		assert.Contains(t, e.Text, `"waiter"`)
		assert.Equal(t, s.rec.ID, one(t, svc, mempool.PoolFull).Session)
		err := errors.Join(<-failed, <-failed)
		assert.ErrorIs(t, err, mempool.ErrBusy)
		assert.ErrorIs(t, err, mempool.ErrLimit)
		one(t, svc, mempool.LeaseLong)
	})
}

func TestAWriterThatDiesIsToldOfIfOthersCanReachWhatItWrote(t *testing.T) {
	svc := newService(t)
	s, writer := open(t, svc), begin(t, svc, mempool.Self(), "writer")
	p, _ := fakePool(t, s, 1<<20)
	l := allocate(t, s, p, 512)
	publish(t, l, mempool.Publication{Name: "weights"})
	release(t, l)
	_, err := writer.Get(t.Context(), "weights", true, Known{}, 0)
	require.NoError(t, err)
	allocate(t, writer, p, 512) // this buffer is not published
	writer.End(mempool.SessionLost, "", nil)
	e := one(t, svc, mempool.WriterDied)
	assert.Equal(t, writer.rec.ID, e.Session)
	assert.Equal(t, 1, e.Count)
	assert.EqualValues(t, 512, e.Bytes)
	_, err = s.Get(t.Context(), "weights", false, Known{}, 0)
	assert.ErrorIs(t, err, mempool.ErrProducerDied)
}

func TestAWriterThatDiesAloneIsNoNews(t *testing.T) {
	svc := newService(t)
	s := begin(t, svc, mempool.Self(), "lonely")
	p, _ := fakePool(t, s, 1<<20)
	l := allocate(t, s, p, 512)
	publish(t, l, mempool.Publication{Name: "mine"}) // the name ends with the session
	release(t, l)
	_, err := s.Get(t.Context(), "mine", true, Known{}, 0)
	require.NoError(t, err)
	s.End(mempool.SessionLost, "", nil)

	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 8)
	camera := r.produce(hire(t, r.svc))
	allocate(t, camera.Session, r.pool, 512) // the channel keeps it when the camera dies, but no frame is in it
	camera.End(mempool.SessionLost, "", nil)
	for _, svc := range []*Service{svc, r.svc} {
		assert.Empty(t, happened(t, svc, mempool.WriterDied))
	}
}

func TestTheLogHasALineForAKilledClientThatHeldMemory(t *testing.T) {
	var log bytes.Buffer
	svc := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil))}) // of level info
	t.Cleanup(svc.Close)
	maker := begin(t, svc, mempool.Self(), "maker")
	var pools []*Pool
	for _, name := range []string{"small", "large"} {
		p := createPool(t, maker, mempool.PoolSpec{Name: name, Kind: fake, MaxBytes: 1 << 21})
		pools = append(pools, p)
	}
	end := func(program string, how mempool.SessionEnding, sizes ...uint64) {
		s := begin(t, svc, mempool.Peer{UID: mempool.Self().UID, PID: 4711}, program)
		s.noteUse()
		for i, size := range sizes {
			allocate(t, s, pools[i], size)
		}
		<-s.End(how, "", nil)
	}
	end("leaves.py", mempool.SessionLeft, 512)
	end("empty.py", mempool.SessionLost)
	assert.Empty(t, log.String())
	end("killed.py", mempool.SessionLost, 512, 1<<20)
	assert.Equal(t, 1, strings.Count(log.String(), "\n"), "%s", log.String())
	for _, part := range []string{"level=INFO", "killed.py", "pid=4711", "2 leases", `1 MiB in pool \"large\", 512 bytes in pool \"small\"`} {
		assert.Contains(t, log.String(), part)
	}
}

func TestTroubleWithTheDriverIsToldOf(t *testing.T) {
	svc := newService(t)
	s := begin(t, svc, mempool.Self(), "unlucky")
	p, backing := fakePool(t, s, 1<<20)
	backing.set("Allocate", mempool.ErrOutOfMemory)
	_, err := s.Allocate(t.Context(), p.rec.Info.ID, mempool.Bytes(512), 0, 0)
	require.ErrorIs(t, err, mempool.ErrOutOfMemory)
	e := one(t, svc, mempool.DriverError)
	assert.Equal(t, p.rec.Info.Name, e.Pool)
	assert.EqualValues(t, 512, e.Bytes)
	backing.set("Allocate", nil)
	release(t, allocate(t, s, p, 512))
	backing.set("Free", errors.New("the GPU has had enough"))
	svc.mu.Lock()
	p.retire(512, false)
	svc.freeAndUnlock()
	assert.Contains(t, happened(t, svc, mempool.DriverError)[1].Text, "the GPU has had enough")
	backing.set("Free", nil)
}

func TestASubscriberThatStaysBehindIsToldOfOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 8)
		camera, sink := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
		camera.meet()
		for range 2 {
			camera.send()
		}
		inHand := sink.next() // the frame in hand takes room in the channel as well
		time.Sleep(3 * usualPatience)
		synctest.Wait()
		e := one(t, r.svc, mempool.SubscriberSlow)
		assert.Equal(t, "frames", e.Channel)
		assert.Equal(t, sink.ID(), e.Session)
		assert.GreaterOrEqual(t, e.Took, usualPatience)
		sink.done(inHand, mempool.Fence{})
		sink.done(sink.next(), mempool.Fence{})
		time.Sleep(usualPatience) // the consumer is not behind now
		camera.send()
		camera.send()
		time.Sleep(3 * usualPatience)
		synctest.Wait()
		sink.done(sink.next(), mempool.Fence{})
		time.Sleep(usualPatience) // the consumer has made room for one frame
		camera.send()
		time.Sleep(3 * usualPatience)
		synctest.Wait()
		assert.Len(t, happened(t, r.svc, mempool.SubscriberSlow), 2)
	})
}

func TestAProducerOfAFullChannelWaitsForRoomInIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 8)
		camera, sink := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
		indifferent := r.consume(hire(t, r.svc), MemberSpec{Full: mempool.Latest})
		camera.meet()
		waits := func() (what string, since time.Time) {
			page, err := camera.View().Sessions("", 99, nil)
			require.NoError(t, err)
			for _, one := range page.Entries {
				if one.ID == camera.ID() {
					what, since = one.WaitsFor, one.Since
				} else {
					assert.Empty(t, one.WaitsFor, "it waits for nobody")
				}
			}
			leases, err := camera.View().Leases("", 99, nil)
			require.NoError(t, err)
			for _, l := range leases.Entries {
				if l.Session == camera.ID() {
					assert.Equal(t, what, l.WaitsFor)
				}
			}
			return what, since
		}
		what, _ := waits()
		assert.Empty(t, what)
		for range 2 {
			camera.send()
		}
		what, since := waits()
		assert.Equal(t, fmt.Sprintf("a consumer (session %d), which is behind in channel \"frames\"", sink.ID()), what)
		time.Sleep(time.Minute)
		_, still := waits()
		assert.Equal(t, since, still)
		for range 2 {
			sink.done(sink.next(), mempool.Fence{})
		}
		what, _ = waits()
		assert.Empty(t, what, "producers do not wait for the consumer that misses frames, session %d", indifferent.ID())
	})
}

func TestAProducerOfAFullQueueWaitsForRoomInIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newChannelRig(t, mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 2}, 8)
		camera := r.produce(hire(t, r.svc))
		waits := func() (what string, since time.Time) {
			page, err := camera.View().Sessions("", 99, nil)
			require.NoError(t, err)
			for _, one := range page.Entries {
				if one.ID == camera.ID() {
					return one.WaitsFor, one.Since
				}
			}
			require.FailNow(t, "the session is not listed")
			return
		}
		camera.send()
		what, _ := waits()
		assert.Empty(t, what)
		camera.send()
		time.Sleep(time.Minute)
		what, since := waits()
		assert.Equal(t, `room in channel "frames" (its frames wait for a consumer)`, what)
		assert.Greater(t, time.Since(since), 50*time.Second, "the service has looked meanwhile")
		sink := r.consume(hire(t, r.svc), MemberSpec{})
		sink.done(sink.next(), mempool.Fence{})
		_, still := waits()
		assert.Equal(t, since, still, "a consumer that is too slow makes room for a frame now and then")
		sink.done(sink.next(), mempool.Fence{})
		what, _ = waits()
		assert.Empty(t, what)
	})
}

func TestAQueueThatDropsFramesBecauseItHasNoConsumerIsToldOfOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newChannelRig(t, mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 2, Full: mempool.DropOldest}, 64)
		camera, sink := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
		stream := func(also ...func()) {
			for i := range 12 {
				camera.send()
				time.Sleep(usualPatience / 4)
				synctest.Wait()
				if i%3 == 2 {
					for _, do := range also {
						do()
					}
				}
			}
		}
		stream(func() { sink.done(sink.next(), mempool.Fence{}) })
		assert.NotZero(t, r.svc.Flows()[0].Dropped)
		assert.Empty(t, happened(t, r.svc, mempool.FrameLost), "the queue has a consumer, which is slow")
		sink.quit()
		stream()
		e := one(t, r.svc, mempool.FrameLost)
		assert.Equal(t, "frames", e.Channel)
		assert.Regexp(t, `queue "frames" has no consumer, and has dropped \d frames that nobody took: start one`, e.Text)
		assert.Less(t, e.Count, 10, "frames that it dropped before do not count")
		assert.GreaterOrEqual(t, e.Took, usualPatience)
		assert.True(t, r.svc.Flows()[0].Untaken)
		time.Sleep(time.Minute)
		assert.False(t, r.svc.Flows()[0].Untaken, "nobody sends any more")
		camera.send()
		assert.True(t, r.svc.Flows()[0].Untaken)
		sink = r.consume(hire(t, r.svc), MemberSpec{})
		stream()
		sink.quit()
		stream()
		assert.Len(t, happened(t, r.svc, mempool.FrameLost), 2)
	})
}

func TestAQueueIsUntakenWhileItsConsumersHangWithoutAFrameInHand(t *testing.T) {
	for _, full := range []mempool.FullPolicy{mempool.DropOldest, mempool.Block} {
		synctest.Test(t, func(t *testing.T) {
			r := newChannelRig(t, mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 2, Full: full}, 64)
			camera, sink := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
			untaken := func(after time.Duration) bool {
				for range 3 {
					_ = camera.try()
				}
				r.svc.Flows()
				time.Sleep(after)
				return r.svc.Flows()[0].Untaken
			}
			assert.False(t, untaken(9*time.Second))
			assert.True(t, untaken(2*time.Second), "no consumer took one for 10 s")
			held := sink.next()
			assert.False(t, untaken(11*time.Second), "it works on a frame")
			sink.done(held, mempool.Fence{})
			assert.False(t, untaken(9*time.Second))
			assert.True(t, untaken(2*time.Second))
			sink.quit()
			assert.True(t, untaken(0), "there is no consumer")
		})
	}
}

func TestAConsumerThatReleasesNothingHoldsProducersUpThoughItTookEveryFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 8)
		camera, sink := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
		camera.meet()
		for range 2 {
			camera.send()
			sink.next()
		}
		time.Sleep(3 * usualPatience)
		synctest.Wait()
		e := one(t, r.svc, mempool.SubscriberSlow)
		assert.Equal(t, sink.ID(), e.Session)
		assert.Contains(t, e.Text, `has 2 frames of channel "frames" to take or to release`)
		status := r.svc.Flows()[0]
		assert.EqualValues(t, 0, status.Waiting)
		assert.EqualValues(t, 2, status.Used)
		assert.Equal(t, sink.ID(), status.Slowest)
		assert.Greater(t, time.Since(status.BlockedSince), 2*usualPatience)
	})
}

func TestOnlyAConsumerWhosePolicyIsToBlockMakesProducersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 8)
		camera, viewer := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{Full: mempool.DropOldest})
		camera.meet()
		for range 4 {
			camera.send()
		}
		time.Sleep(3 * usualPatience)
		synctest.Wait()
		status := r.svc.Flows()[0]
		assert.EqualValues(t, 2, status.Used)
		assert.False(t, status.Blocked)
		assert.Equal(t, viewer.ID(), status.Slowest)
		assert.Contains(t, one(t, r.svc, mempool.SubscriberSlow).Text, "it misses frames")
		archive := r.consume(hire(t, r.svc), MemberSpec{Oldest: true})
		status = r.svc.Flows()[0]
		assert.True(t, status.Blocked)
		assert.Equal(t, archive.ID(), status.Slowest, "the viewer is as far behind, and nobody waits for it")
		camera.leave()
		assert.False(t, r.svc.Flows()[0].Blocked, "no producer is left")
	})
}

func TestTheConsumerWithTheOldestFrameOfAQueueIsTheSlowest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newChannelRig(t, mempool.ChannelSpec{Capacity: 1, Mode: mempool.WorkQueue}, 8)
		camera, slow, fast := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{}), r.consume(hire(t, r.svc), MemberSpec{})
		camera.meet()
		for _, one := range []*sink{slow, fast} {
			camera.send()
			one.next()
		}
		status := r.svc.Flows()[0]
		assert.Equal(t, slow.ID(), status.Slowest)
		assert.True(t, status.BlockedSince.IsZero())
		camera.send()
		assert.Zero(t, time.Since(r.svc.Flows()[0].BlockedSince))
		time.Sleep(usualPatience)
		assert.Equal(t, usualPatience, time.Since(r.svc.Flows()[0].BlockedSince))
	})
}

func TestAStrangerIsToldOfEventsOfItsOwnAlone(t *testing.T) {
	svc := newService(t)
	s, stranger := begin(t, svc, mempool.Self(), "owner"), begin(t, svc, mempool.Peer{UID: 4711, PID: 17}, "spy")
	friend := begin(t, svc, mempool.Peer{UID: 4712, PID: 18}, "friend")
	p := createPool(t, s, mempool.PoolSpec{Name: "shared", Kind: fake, MaxBytes: 512, Access: mempool.Access{UIDs: []uint32{4712}}})
	svc.mu.Lock()
	stranger.noteUse()
	friend.noteUse()
	svc.mu.Unlock()
	require.NoError(t, s.DestroyPool(p.rec.Info.ID))
	<-p.closed
	kinds := func(s *Session) (kinds []mempool.EventKind) {
		page, err := s.View().Events(t.Context(), 0, 99, 0)
		require.NoError(t, err)
		assert.Equal(t, svc.LastEvent(), page.Next)
		for _, e := range page.Events {
			kinds = append(kinds, e.Kind)
		}
		return kinds
	}
	assert.Equal(t, []mempool.EventKind{mempool.SessionBegan}, kinds(stranger))
	assert.Equal(t, []mempool.EventKind{mempool.PoolMade, mempool.SessionBegan, mempool.PoolDestroyed}, kinds(friend))
	assert.Len(t, kinds(s), 5)
}

// unlocked is a handler of logs that notes whether the lock of a service is free while it handles a record.
type unlocked struct {
	slog.Handler
	svc  *Service
	free []bool
}

func (u *unlocked) Handle(context.Context, slog.Record) error {
	u.free = append(u.free, u.svc.mu.TryLock())
	if u.free[len(u.free)-1] {
		u.svc.mu.Mutex.Unlock()
	}
	return nil
}

func TestNoLockIsHeldWhileAnEventIsLogged(t *testing.T) {
	log := &unlocked{Handler: slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})}
	log.svc = New(Config{Log: slog.New(log)})
	s := open(t, log.svc)
	p, _ := fakePool(t, s, 1<<20)
	allocate(t, s, p, 1)
	_, err := s.allocate(t.Context(), p.Info().ID, mempool.Bytes(1<<21), 0)
	require.Error(t, err)
	s.Refused(err)
	log.svc.Impaired("something is missing")
	s.End(mempool.SessionFailed, "it is broken", nil)
	log.svc.Close()
	require.GreaterOrEqual(t, len(log.free), 5)
	assert.NotContains(t, log.free, false)
}

func TestOneUserCannotFillTheHistoryOrTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		svc := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
		fail := func(uid uint32, n int) {
			for range n {
				s, err := svc.OpenSession(mempool.Peer{UID: uid, PID: 1}, "", nil)
				require.NoError(t, err)
				s.End(mempool.SessionFailed, "a packet was malformed", nil)
			}
		}
		ended := func(uid uint32) (events, count int) {
			for _, e := range happened(t, svc, mempool.SessionEnded) {
				if e.UID == uid {
					events, count = events+1, count+e.Count
				}
			}
			return events, count
		}
		fail(1, 5000)
		fail(2, 3)
		events, _ := ended(1)
		assert.Equal(t, ration.Burst, events)
		assert.Equal(t, ration.Burst+3, strings.Count(log.String(), "a packet was malformed"))
		events, count := ended(2)
		assert.Equal(t, []int{3, 3}, []int{events, count}, "other users are heard")
		s, err := svc.OpenSession(mempool.Peer{UID: 1, PID: 1}, "", func(Notice) {})
		require.NoError(t, err)
		s.Refused(&LimitError{Limit: "session-leases", Max: 1, Who: "a session", What: "leases", Have: 1, Advice: "release one"})
		assert.EqualValues(t, 1, one(t, svc, mempool.LimitMet).UID, "and so are events of another kind")

		time.Sleep(eventlog.Rest)
		synctest.Wait()
		events, count = ended(1)
		assert.Equal(t, []int{ration.Burst + 1, 5000}, []int{events, count}, "one more event stands for the rest")
		assert.Contains(t, log.String(), fmt.Sprintf("the last of %d such events", 5000-ration.Burst))
		assert.EqualValues(t, 5003, svc.Counts().Events[mempool.SessionEnded])

		fail(1, 5000)
		svc.Close()
		_, count = ended(1)
		assert.Equal(t, 10000, count, "the end of the service leaves out nothing")
	})
}
