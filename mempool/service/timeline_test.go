package service

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestASealedTimelineIsWrittenByNobodyElse(t *testing.T) {
	svc := newService(t)
	w := hire(t, svc)
	_, x, err := w.Timeline()
	require.NoError(t, err)
	fd := int(x.Files[0].Fd())
	_, err = mempool.MapPage(x, true)
	assert.ErrorContains(t, err, "permission denied")
	_, err = unix.Pwrite(fd, []byte{1}, 0)
	assert.ErrorIs(t, err, unix.EBADF)
	assert.Error(t, unix.Ftruncate(fd, 0))
	mem, err := unix.Mmap(fd, 0, mempool.TimelineWords*8, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	assert.ErrorIs(t, unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE), unix.EACCES)
	require.NoError(t, unix.Munmap(mem))

	w.reach(mempool.Fence{Word: 3, Value: 9})
	view, err := mempool.MapPage(x, false)
	require.NoError(t, err)
	assert.EqualValues(t, 9, view.Load(3), "its owner still writes it")
	require.NoError(t, view.Close())
}

func TestOnlyFencesOfOnesOwnSealedTimelineCount(t *testing.T) {
	svc := newService(t)
	owner := open(t, svc)
	p, _ := fakePool(t, owner, 1<<20)
	w, other := hire(t, svc), hire(t, svc)
	s, err := svc.OpenSession(mempool.Self(), "", func(Notice) {})
	require.NoError(t, err)
	require.ErrorIs(t, s.SealTimeline(), mempool.ErrInvalid, "there is none")
	unsealed, _, err := s.Timeline()
	require.NoError(t, err)

	bad := []struct {
		session *Session
		fence   mempool.Fence
	}{
		{s, mempool.Fence{Timeline: unsealed, Word: 0, Value: 1}},
		{s, mempool.Fence{Timeline: w.id, Word: 0, Value: 1}},
		{w.Session, mempool.Fence{Timeline: other.id, Word: 0, Value: 1}},
		{w.Session, mempool.Fence{Timeline: 0, Word: 0, Value: 1}},
		{w.Session, mempool.Fence{Timeline: math.MaxInt64, Word: 0, Value: 1}},
		{w.Session, mempool.Fence{Timeline: w.id, Word: mempool.TimelineWords, Value: 1}},
		{w.Session, mempool.Fence{Timeline: w.id, Word: math.MaxUint64, Value: 1}},
		{w.Session, mempool.Fence{Timeline: w.id, Word: 0, Value: 0}},
		{w.Session, mempool.Fence{Timeline: w.id, Word: 0, Value: mempool.MaxFenceValue + 1}},
		{w.Session, mempool.Fence{Timeline: w.id, Word: 0, Value: math.MaxUint64}},
	}
	for _, b := range bad {
		l := allocate(t, b.session, p, 10)
		assert.ErrorIs(t, l.Publish(mempool.Publication{Name: "x", Completion: mempool.Completion{Ready: &b.fence}}), mempool.ErrInvalid, "%v", b.fence)
		assert.ErrorIs(t, l.ReleaseAt(false, []mempool.Fence{b.fence}), mempool.ErrInvalid, "%v", b.fence)
		release(t, l)
	}
	l := allocate(t, w.Session, p, 10)
	assert.ErrorIs(t, l.ReleaseAt(false, make([]mempool.Fence, mempool.MaxDone+1)), mempool.ErrInvalid)
	release(t, l)
	checkBooks(t, svc)
}

func TestAReaderWaitsForTheContentAndNothingElse(t *testing.T) {
	svc := newService(t)
	p, _ := fakePool(t, open(t, svc), 1<<20)
	producer, consumer := hire(t, svc), hire(t, svc)

	l := allocate(t, producer.Session, p, 10)
	ready := producer.fence()
	event, err := mempool.EventOf(make([]byte, mempool.EventBytes))
	require.NoError(t, err)
	require.NoError(t, l.Publish(mempool.Publication{Name: "x", Completion: mempool.Completion{Ready: &ready, Event: event}}))
	_, err = consumer.FindTimeline(producer.id)
	assert.ErrorIs(t, err, mempool.ErrStale, "it was not sent a fence yet")
	got := consumer.get(t, "x", false)
	assert.Equal(t, []mempool.Fence{ready}, got.Grant().Wait)
	assert.Equal(t, event.Handle(), got.Grant().Event)
	x, err := consumer.FindTimeline(producer.id)
	require.NoError(t, err)
	view, err := mempool.MapPage(x, false)
	require.NoError(t, err)
	defer view.Close()

	producer.reach(ready)
	assert.EqualValues(t, ready.Value, view.Load(workerWord))
	assert.Empty(t, got.Grant().Wait, "what is reached need not be waited for")
	assert.Empty(t, consumer.get(t, "x", false).Grant().Wait)
	_, err = consumer.FindTimeline(99)
	assert.ErrorIs(t, err, mempool.ErrStale)
}

func TestTheNextWriterWaitsForEveryReader(t *testing.T) {
	svc := newService(t)
	p, _ := fakePool(t, open(t, svc), 512) // room for one block
	producer, a, b := hire(t, svc), hire(t, svc), hire(t, svc)

	l := allocate(t, producer.Session, p, 10)
	ready := producer.fence()
	producer.publish(t, l, "x", &ready)
	ra, rb := a.get(t, "x", false), b.get(t, "x", false)
	ra2 := a.get(t, "x", false)
	early, late := a.fence(), a.fence()
	doneB := b.fence()
	require.NoError(t, ra2.ReleaseAt(false, []mempool.Fence{late}))
	require.NoError(t, ra.ReleaseAt(false, []mempool.Fence{early}))
	require.NoError(t, rb.ReleaseAt(false, []mempool.Fence{doneB}))
	release(t, l)
	require.NoError(t, producer.Unpublish("x"))
	assert.EqualValues(t, 512, svc.Stats().Pools[0].Cached, "the block can be used again at once")

	next := allocate(t, producer.Session, p, 10)
	assert.ElementsMatch(t, []mempool.Fence{ready, late, doneB}, next.Grant().Wait, "the last of each word")
	b.reach(doneB)
	a.reach(early)
	assert.ElementsMatch(t, []mempool.Fence{ready, late}, next.Grant().Wait)
	release(t, next) // the user of that lease did not wait, so the next user must wait
	again := allocate(t, producer.Session, p, 10)
	assert.ElementsMatch(t, []mempool.Fence{ready, late}, again.Grant().Wait)
	producer.publish(t, again, "y", nil)
	assert.Empty(t, a.get(t, "y", false).Grant().Wait, "readers wait for the content, not for readers of something else")
}

func TestAWritersDoneFenceIsWhatReadersWaitFor(t *testing.T) {
	svc := newService(t)
	p, _ := fakePool(t, open(t, svc), 512)
	w, r := hire(t, svc), hire(t, svc)
	l := allocate(t, w.Session, p, 10)
	first := w.fence()
	w.publish(t, l, "x", &first)
	release(t, l)
	second := w.get(t, "x", true)
	assert.Equal(t, []mempool.Fence{first}, second.Grant().Wait)
	done := w.fence()
	require.NoError(t, second.ReleaseAt(false, []mempool.Fence{done}))
	assert.Equal(t, []mempool.Fence{done}, r.get(t, "x", false).Grant().Wait)
}

func TestABlockIsNotFreedWhileWorkOnItIsUnderWay(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, backing := fakePool(t, s, 1<<20)
	w := hire(t, svc)
	l := allocate(t, w.Session, p, 10)
	mapBlock(t, l)
	done := w.fence()
	require.NoError(t, l.ReleaseAt(false, []mempool.Fence{done}))
	require.NoError(t, w.Dropped([]uint64{l.Grant().Block}))
	n, err := s.TrimPool(p.rec.Info.ID, 0)
	require.NoError(t, err)
	assert.Zero(t, n)
	assert.Zero(t, backing.frees)
	assert.EqualValues(t, 512, svc.Stats().Pools[0].Held)
	checkBooks(t, svc)
	w.reach(done)
	all, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1<<20), patience) // waits for the block to be freed
	require.NoError(t, err)
	release(t, all)
	backing.mu.Lock()
	assert.Equal(t, 1, backing.frees)
	backing.mu.Unlock()
	checkBooks(t, svc)
}

func TestABlockWithTooManyFencesIsNotHandedOut(t *testing.T) {
	svc := newService(t)
	p, _ := fakePool(t, open(t, svc), 512)
	w := hire(t, svc)
	word := uint64(0)
	for word < maxFences+10 {
		l := allocate(t, w.Session, p, 10)
		var done []mempool.Fence
		for range mempool.MaxDone {
			done = append(done, mempool.Fence{Timeline: w.id, Word: word, Value: 1})
			word++
		}
		require.NoError(t, l.ReleaseAt(false, done))
	}
	_, err := w.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(10), 0)
	require.ErrorIs(t, err, mempool.ErrLimit)
	for i := range word {
		w.reach(mempool.Fence{Word: i, Value: 1})
	}
	l, err := w.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(10), patience)
	require.NoError(t, err)
	assert.Empty(t, l.Grant().Wait)
}

func TestWhatADeadProcessHadNotFinishedHasFailed(t *testing.T) {
	svc := newService(t)
	p, _ := fakePool(t, open(t, svc), 1<<20)
	producer, consumer := hire(t, svc), hire(t, svc)
	reached, unreached := producer.fence(), producer.fence()
	for name, ready := range map[string]*mempool.Fence{"finished": &reached, "torn": &unreached, "at once": nil} {
		l := allocate(t, producer.Session, p, 10)
		producer.publish(t, l, name, ready)
		release(t, l)
	}
	producer.reach(reached)
	torn := consumer.get(t, "torn", false)
	x, err := consumer.FindTimeline(producer.id)
	require.NoError(t, err)
	view, err := mempool.MapPage(x, false)
	require.NoError(t, err)
	defer view.Close()
	waited := make(chan error)
	go func() { waited <- view.Await(context.Background(), unreached) }()

	gone := make(chan struct{})
	reclaimed := producer.End(mempool.SessionLeft, "", gone)
	assert.Equal(t, []mempool.Fence{unreached}, torn.Grant().Wait, "its process may still finish")
	assert.Empty(t, told[Failed](consumer))
	close(gone)
	<-reclaimed
	assert.ErrorIs(t, <-waited, mempool.ErrProducerDied)
	assert.NoError(t, view.Await(context.Background(), reached), "that was reached")
	assert.EqualValues(t, letGoBy+reached.Value, view.Load(workerWord))
	assert.EqualValues(t, letGoBy, view.Load(0))

	assert.Equal(t, []Failed{{[]uint64{torn.Grant().Buffer}}}, told[Failed](consumer))
	assert.True(t, hasFailed(torn))
	_, err = consumer.getLease(context.Background(), "torn", false, 0)
	assert.ErrorIs(t, err, mempool.ErrProducerDied)
	release(t, consumer.get(t, "finished", false))
	release(t, consumer.get(t, "at once", false))
	assert.Empty(t, told[Forget](consumer), "a lease still names the timeline")
	release(t, torn)
	assert.Equal(t, []Forget{{[]uint64{producer.id}}}, told[Forget](consumer))
	_, err = consumer.FindTimeline(producer.id)
	assert.ErrorIs(t, err, mempool.ErrStale)
	assert.Len(t, svc.ledger.Timelines, 1)
}

func TestTheDoneFencesOfADeadReaderHoldNobodyUp(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 512)
	w, r := hire(t, svc), hire(t, svc)
	l := allocate(t, w.Session, p, 10)
	w.publish(t, l, "x", nil)
	release(t, l)
	require.NoError(t, r.get(t, "x", false).ReleaseAt(false, []mempool.Fence{r.fence()}))
	require.NoError(t, w.Unpublish("x"))
	next := allocate(t, w.Session, p, 10)
	require.Len(t, next.Grant().Wait, 1)
	r.die()
	assert.Empty(t, next.Grant().Wait)
	release(t, next)
	n, err := s.TrimPool(p.rec.Info.ID, 0)
	require.NoError(t, err)
	assert.EqualValues(t, 512, n)
}

func TestACleanEndNeedsNoProcessToBeGone(t *testing.T) {
	svc := newService(t)
	p, _ := fakePool(t, open(t, svc), 1<<20)
	w := hire(t, svc)
	l := allocate(t, w.Session, p, 10)
	ready := w.fence()
	w.publish(t, l, "x", &ready)
	release(t, l)
	w.reach(ready)
	<-w.End(mempool.SessionLeft, "", make(chan struct{}))
	assert.EqualValues(t, ready.Value, w.page.Load(workerWord), "its process lives: the words are its own")
	assert.Empty(t, svc.ledger.Timelines)
	release(t, hire(t, svc).get(t, "x", false))
}

// wordsOf returns the words of a timeline that is not sealed yet, so that the test can write the
// words as a client can.
func wordsOf(t *testing.T, x mempool.Export) []atomic.Uint64 {
	t.Helper()
	mem, err := unix.Mmap(int(x.Files[0].Fd()), 0, mempool.TimelineWords*8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, unix.Munmap(mem)) })
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&mem[0])), mempool.TimelineWords)
}

func TestAHostileWordHarmsOnlyItsOwner(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 512)
	var words []atomic.Uint64
	w := hireWith(t, svc, func(x mempool.Export) { words = wordsOf(t, x) })
	r := hire(t, svc)
	for _, word := range []uint64{math.MaxUint64, 1 << 63, letGoBy, letGoBy - 1, 0} {
		l := allocate(t, w.Session, p, 10)
		ready := mempool.Fence{Timeline: w.id, Word: 0, Value: 5}
		require.NoError(t, l.Publish(mempool.Publication{Name: "x", Completion: mempool.Completion{Ready: &ready}}))
		words[0].Store(word)
		release(t, r.get(t, "x", false))
		release(t, l)
		require.NoError(t, w.Unpublish("x"))
		words[0].Store(6)
	}
	words[0].Store(math.MaxUint64)
	l := allocate(t, w.Session, p, 10)
	ready := mempool.Fence{Timeline: w.id, Word: 0, Value: mempool.MaxFenceValue}
	require.NoError(t, l.Publish(mempool.Publication{Name: "x", Keep: true, Completion: mempool.Completion{Ready: &ready}}))
	got := r.get(t, "x", false)
	x, err := r.FindTimeline(w.id)
	require.NoError(t, err)
	view, err := mempool.MapPage(x, false)
	require.NoError(t, err)
	defer view.Close()
	words[0].Store(3)
	w.die()
	assert.ErrorIs(t, view.Await(context.Background(), ready), mempool.ErrProducerDied, "every wait ends")
	assert.True(t, hasFailed(got))
}

func TestASessionWithoutTimelinesWaitsInTheService(t *testing.T) {
	svc := newService(t)
	p, _ := fakePool(t, open(t, svc), 1<<20)
	w := hire(t, svc)
	old := openClient(t, svc, mempool.Self())
	l := allocate(t, w.Session, p, 10)
	ready := w.fence()
	w.publish(t, l, "x", &ready)
	got, err := old.getLease(context.Background(), "x", false, 0)
	require.NoError(t, err)
	assert.ErrorIs(t, got.AwaitWork(context.Background(), 1), mempool.ErrBusy)
	done := make(chan error)
	go func() { done <- got.AwaitWork(context.Background(), patience) }()
	w.reach(ready)
	assert.NoError(t, <-done)
}

func TestAPublicationThatIsRefusedLeavesTheFencesAsTheyWere(t *testing.T) {
	svc := newService(t)
	p, _ := fakePool(t, open(t, svc), 1024)
	w := hire(t, svc)
	w.publish(t, allocate(t, w.Session, p, 10), "taken", nil)
	l := allocate(t, w.Session, p, 10)
	ready := w.fence()
	w.publish(t, l, "x", &ready)
	release(t, l)
	again := w.get(t, "x", true)
	w.reach(ready)
	for range 2 {
		require.ErrorIs(t, again.Publish(mempool.Publication{Name: "taken"}), mempool.ErrExists)
	}
	require.NoError(t, again.Publish(mempool.Publication{Name: "y"}))
	assert.Empty(t, w.get(t, "y", false).Grant().Wait)
}

func TestTheFencesOfReadersDoNotPileUp(t *testing.T) {
	svc := newService(t)
	p, _ := fakePool(t, open(t, svc), 512)
	w := hire(t, svc)
	l := allocate(t, w.Session, p, 10)
	w.publish(t, l, "x", nil)
	for range 100 {
		r := hire(t, svc)
		got := r.get(t, "x", false)
		done := r.fence()
		require.NoError(t, got.ReleaseAt(false, []mempool.Fence{done}))
		r.reach(done)
		r.die()
	}
	assert.LessOrEqual(t, len(l.rec.Buffer.Block.Fences), 1)
}

func TestALeaseWithMoreFencesThanCanBeToldIsBusy(t *testing.T) {
	svc := newService(t)
	p, _ := fakePool(t, open(t, svc), 512)
	w, r := hire(t, svc), hire(t, svc)
	l := allocate(t, w.Session, p, 10)
	w.publish(t, l, "x", nil)
	release(t, l)
	begin := func(write bool) error {
		for word := uint64(0); word < maxFences+10; {
			got, err := r.getLease(context.Background(), "x", write, 0)
			if err != nil {
				return err
			}
			var done []mempool.Fence
			for range mempool.MaxDone {
				done = append(done, mempool.Fence{Timeline: r.id, Word: word, Value: 1})
				word++
			}
			require.NoError(t, got.ReleaseAt(false, done))
		}
		return nil
	}
	require.NoError(t, begin(false))
	release(t, w.get(t, "x", false))
	_, err := w.getLease(context.Background(), "x", true, 0)
	require.ErrorIs(t, err, mempool.ErrBusy)
	reader := r
	time.AfterFunc(time.Millisecond, func() {
		for word := range uint64(mempool.TimelineWords) {
			reader.reach(mempool.Fence{Word: word, Value: 1})
		}
	})
	got, err := w.getLease(context.Background(), "x", true, patience)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(got.Grant().Wait), maxFences, "so many can be told")
	release(t, got)

	r = hire(t, svc)
	require.NoError(t, begin(true), "one writer after the other")
	_, err = w.getLease(context.Background(), "x", false, 0)
	require.ErrorIs(t, err, mempool.ErrBusy)
	r.die()
	_, err = w.getLease(context.Background(), "x", false, 0)
	require.ErrorIs(t, err, mempool.ErrProducerDied)
}

func TestATimelineEndsOnceItsFencesAreReachedThoughTheProcessLives(t *testing.T) {
	svc := newService(t)
	p, _ := fakePool(t, open(t, svc), 5120)
	timelines := func() int {
		svc.mu.Lock()
		defer svc.mu.Unlock()
		return len(svc.ledger.Timelines)
	}
	maps := hire(t, svc)
	mapBlock(t, allocate(t, maps.Session, p, 10))
	gone := make(chan struct{})
	reclaimed := maps.End(mempool.SessionLeft, "", gone)
	assert.Zero(t, timelines(), "its block is held for the process, its timeline is not")

	for _, holds := range []bool{false, true} {
		w := hire(t, svc)
		l := allocate(t, w.Session, p, 10)
		if holds {
			mapBlock(t, l)
		}
		done := w.fence()
		require.NoError(t, l.ReleaseAt(false, []mempool.Fence{done}))
		ended := w.End(mempool.SessionLeft, "", gone)
		assert.Equal(t, 1, timelines())
		w.reach(done)
		require.Eventually(t, func() bool { return timelines() == 0 }, patience, time.Millisecond)
		if !holds {
			<-ended
			continue
		}
		select {
		case <-ended:
			t.Error("its process may still use the block")
		default:
		}
		defer func() { <-ended }()
	}
	close(gone)
	<-reclaimed
}

func TestWhyContentFailedIsKnownAsLongAsTheBuffer(t *testing.T) {
	svc := newService(t)
	owner := open(t, svc)
	p, _ := fakePool(t, owner, 1<<20)
	w := hire(t, svc)
	l := allocate(t, w.Session, p, 10)
	at := w.fence()
	require.NoError(t, l.Publish(mempool.Publication{Name: "x", Keep: true, Completion: mempool.Completion{Ready: &at}}))
	require.NoError(t, w.clock.Fail(at, "no light"))
	said := func() {
		_, err := owner.Get(context.Background(), "x", false, Known{}, 0)
		require.ErrorIs(t, err, mempool.ErrContentFailed)
		assert.NotErrorIs(t, err, mempool.ErrProducerDied)
		assert.ErrorContains(t, err, "no light")
	}
	said()
	gone := make(chan struct{})
	over := w.End(mempool.SessionLeft, "", gone)
	close(gone)
	<-over
	said()
	checkBooks(t, svc)
	require.NoError(t, owner.Unpublish("x"))
	checkBooks(t, svc)
}

func TestANameThatLastsWhileItsBufferIsUsedEndsWhenTheContentFails(t *testing.T) {
	for name, fail := range map[string]func(*worker, mempool.Fence){
		"said": func(w *worker, at mempool.Fence) { require.NoError(t, w.clock.Fail(at, "no light")) },
		"died": func(w *worker, _ mempool.Fence) {
			gone := make(chan struct{})
			over := w.End(mempool.SessionLeft, "", gone)
			close(gone)
			<-over
		},
	} {
		t.Run(name, func(t *testing.T) {
			svc := newService(t)
			reader := open(t, svc)
			p, _ := fakePool(t, reader, 1<<20)
			w := hire(t, svc)
			l := allocate(t, w.Session, p, 10)
			at := w.fence()
			require.NoError(t, l.Publish(mempool.Publication{Name: "x", WhileUsed: true, Completion: mempool.Completion{Ready: &at}}))
			held, err := reader.getLease(context.Background(), "x", false, 0)
			require.NoError(t, err, "it waits for the content")
			fail(w, at)
			_, err = reader.getLease(context.Background(), "x", false, 0)
			if name == "said" { // the service learns it now
				require.ErrorIs(t, err, mempool.ErrContentFailed)
				_, err = reader.getLease(context.Background(), "x", false, 0)
			}
			require.ErrorIs(t, err, mempool.ErrNotFound, "another program may publish it anew")
			checkBooks(t, svc)
			release(t, held)
			checkBooks(t, svc)
		})
	}
}

// No session leases the buffer between the failure of its content and the end of the producer's session.
func TestContentThatFailedUnseenHasFailedOnceItsSessionHasEnded(t *testing.T) {
	for name, gone := range map[string]func(chan struct{}){"with its process": func(c chan struct{}) { close(c) }, "whose process lives": func(chan struct{}) {}} {
		t.Run(name, func(t *testing.T) {
			svc := newService(t)
			owner := open(t, svc)
			p, _ := fakePool(t, owner, 1<<20)
			w := hire(t, svc)
			l := allocate(t, w.Session, p, 10)
			at := w.fence()
			require.NoError(t, l.Publish(mempool.Publication{Name: "x", Keep: true, Completion: mempool.Completion{Ready: &at}}))
			release(t, l)
			require.NoError(t, w.clock.Fail(at, "no light"))
			end := make(chan struct{})
			over := w.End(mempool.SessionLeft, "", end)
			gone(end)
			<-over
			_, err := owner.Get(context.Background(), "x", false, Known{}, 0)
			require.ErrorIs(t, err, mempool.ErrContentFailed)
			assert.ErrorContains(t, err, "no light")
			require.NoError(t, owner.Unpublish("x"))
		})
	}
}
