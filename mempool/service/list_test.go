package service

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// all returns the entries of all pages.
func all[T any](t *testing.T, most int, page func(after string, most int, into []T) (Page[T], error)) (entries []T) {
	t.Helper()
	for after := ""; ; {
		p, err := page(after, most, nil)
		require.NoError(t, err)
		assert.LessOrEqual(t, len(p.Entries), most)
		entries = append(entries, p.Entries...)
		if after = p.Next; after == "" {
			return entries
		}
	}
}

func TestAListHasEveryEntryOnceHoweverLongAPageIs(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 1<<20)
	want := []string{}
	for i := range 10 {
		l := allocate(t, s, p, 100)
		publish(t, l, mempool.Publication{Name: fmt.Sprintf("name %d", i)})
		want = append(want, fmt.Sprintf("name %d", i))
	}
	for most := 1; most <= 11; most++ {
		names := []string{}
		for _, n := range all(t, most, s.View().Names) {
			names = append(names, n.Name)
		}
		assert.Equal(t, want, names, most)
		buffers := all(t, most, s.View().Buffers)
		require.Len(t, buffers, 10, most)
		for i, b := range buffers {
			assert.EqualValues(t, i+1, b.ID)
		}
	}
	_, err := s.View().Buffers("everything", 1, nil)
	assert.ErrorIs(t, err, mempool.ErrInvalid)
}

func TestAListTellsWhoHoldsABuffer(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 1<<20)
	l := allocate(t, s, p, 100)
	b := all(t, 9, s.View().Buffers)[0]
	assert.Equal(t, s.rec.ID, b.Writer)
	assert.EqualValues(t, 100, b.Bytes)
	assert.Equal(t, p.rec.Info.ID, b.Pool)
	publish(t, l, mempool.Publication{Name: "x"})
	readers := []uint64{s.rec.ID}
	for range mempool.MaxReaders + 2 {
		other := open(t, svc)
		_, err := other.getLease(t.Context(), "x", false, 0)
		require.NoError(t, err)
		readers = append(readers, other.rec.ID)
	}
	b = all(t, 9, s.View().Buffers)[0]
	assert.Zero(t, b.Writer)
	assert.Len(t, b.Readers, mempool.MaxReaders)
	assert.Subset(t, readers, b.Readers)
	assert.Equal(t, mempool.MaxReaders+3, b.Reads)
	assert.Equal(t, 1, b.Names)
	for i, one := range all(t, 4, s.View().Sessions) {
		assert.Equal(t, readers[i], one.ID)
		assert.Equal(t, 1, one.Leases)
	}
	assert.NotZero(t, all(t, 99, s.View().Sessions)[0].Bytes)
}

func TestAListOfChannelsCountsWhoTakesPart(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 4)
	r.produce(hire(t, r.svc))
	sink := r.consume(hire(t, r.svc), MemberSpec{})
	r.sit(hire(t, r.svc), MemberSpec{Role: Consumer}) // this member has not entered
	want := mempool.ChannelInfo{ChannelIdentity: r.info, UID: r.owner.rec.Peer.UID, Producers: 1, Consumers: 1}
	assert.Equal(t, []mempool.ChannelInfo{want}, all(t, 9, r.owner.View().Channels))
	require.NoError(t, r.owner.Channel(r.info.ID).Close())
	want.Closed = true
	assert.Equal(t, []mempool.ChannelInfo{want}, all(t, 9, r.owner.View().Channels), "its consumer may take what it has")
	sink.quit()
	assert.Empty(t, all(t, 9, r.owner.View().Channels))
}

func TestAStrangerIsToldOfItsOwnAlone(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 1<<20)
	publish(t, allocate(t, s, p, 100), mempool.Publication{Name: "x"})
	publish(t, allocate(t, s, p, 100), mempool.Publication{Name: "x", Replace: true})
	_, err := s.MakeChannel(mempool.ChannelSpec{Name: "c", Pool: p.rec.Info.ID, Capacity: 1})
	require.NoError(t, err)
	stranger, err := svc.OpenSession(mempool.Peer{UID: 4711, PID: 17}, "spy", func(Notice) {})
	require.NoError(t, err)
	assert.Empty(t, all(t, 9, stranger.View().Names))
	assert.Empty(t, all(t, 9, stranger.View().Buffers))
	assert.Empty(t, all(t, 9, stranger.View().Channels))
	mine := all(t, 9, stranger.View().Sessions)
	require.Len(t, mine, 1)
	assert.Equal(t, "spy", mine[0].Program)
	assert.EqualValues(t, 17, mine[0].PID)
	assert.False(t, mine[0].Began.IsZero())
	assert.Len(t, all(t, 9, s.View().Sessions), 2, "the service's own user sees all")
	stranger.End(mempool.SessionLeft, "", nil)
	_, err = stranger.View().Names("", 9, nil)
	assert.ErrorIs(t, err, mempool.ErrClosed)
}

func TestANameThatIsNotThereBringsSimilarOnesThatTheSessionSees(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p := createPool(t, s, mempool.PoolSpec{Name: "frames", Kind: fake, MaxBytes: 1 << 20})
	publish(t, allocate(t, s, p, 100), mempool.Publication{Name: "weights"})
	_, err := s.MakeChannel(mempool.ChannelSpec{Name: "video", Pool: p.rec.Info.ID, Capacity: 1})
	require.NoError(t, err)
	stranger, err := svc.OpenSession(mempool.Peer{UID: 4711, PID: 17}, "spy", func(Notice) {})
	require.NoError(t, err)
	for what, ask := range map[string]func(*Session) error{
		`"weights"`: func(s *Session) error { _, err := s.Get(t.Context(), "weihgts", false, Known{}, 0); return err },
		`"frames"`:  func(s *Session) error { _, err := s.OpenPool(t.Context(), "frame", 0); return err },
		`"video"`:   func(s *Session) error { _, err := s.FindChannel(t.Context(), "Video", 0); return err },
	} {
		assert.ErrorContains(t, ask(s), "; did you mean "+what+"?")
		err := ask(stranger)
		require.ErrorIs(t, err, mempool.ErrNotFound)
		assert.NotContains(t, err.Error(), "mean", "only what it may see")
	}
}

func TestALongNameOfAProgramIsCutBetweenLetters(t *testing.T) {
	s, err := newService(t).OpenSession(mempool.Self(), strings.Repeat("é", mempool.MaxNameBytes), nil)
	require.NoError(t, err)
	listed := all(t, 9, s.View().Sessions)
	require.Len(t, listed, 1)
	assert.Equal(t, strings.Repeat("é", mempool.MaxNameBytes/2), listed[0].Program)
}

func TestAListHasOnceWhatIsThereAllTheTimeWhileOthersComeAndGo(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 64<<20)
	const stay = 400
	var want []uint64
	for range stay {
		want = append(want, allocate(t, s, p, 512).Grant().Buffer)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var churn sync.WaitGroup
	for range 2 {
		other := open(t, svc)
		churn.Go(func() {
			for ctx.Err() == nil {
				var came []Lease
				for range 100 {
					l, err := other.allocate(ctx, p.rec.Info.ID, mempool.Bytes(512), 0)
					if err == nil {
						came = append(came, l)
					}
				}
				for _, l := range came {
					assert.NoError(t, l.Release(false))
				}
			}
		})
	}
	for _, most := range []int{16, 64, stay, 2 * stay} {
		stays, last, after := make(map[uint64]bool), uint64(0), ""
		for {
			page, err := s.View().Buffers(after, most, nil)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page.Entries), most)
			for _, b := range page.Entries {
				require.Greater(t, b.ID, last, "in their order")
				last, stays[b.ID] = b.ID, true
			}
			if after = page.Next; after == "" || last > want[stay-1] {
				break
			}
		}
		for _, id := range want {
			require.Contains(t, stays, id)
		}
	}
	cancel()
	churn.Wait()
}

func TestAListThatBeginsAnewSeesWhatCameSince(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 1<<20)
	for n := range 5 {
		page, err := s.View().Buffers("", 10, nil)
		require.NoError(t, err)
		require.Len(t, page.Entries, n)
		require.Empty(t, page.Next)
		allocate(t, s, p, 512)
	}
}

// counted counts how many entries a list passes.
type counted struct{ passed *int }

func (c counted) VisibleTo(*ledger.Session) bool { *c.passed++; return true }

func TestAPagePassesItsOwnEntriesAndTheNextOne(t *testing.T) {
	s := open(t, newService(t))
	passed := 0
	var all ledger.Index[uint64, counted]
	for id := range uint64(640) {
		all.Set(id+1, counted{&passed})
	}
	for _, after := range []string{"", "7", fmt.Sprint(384), fmt.Sprint(640 - 7)} {
		passed = 0
		page, err := listByID(s, &all, after, 7, nil, func(counted) int { return 0 })
		require.NoError(t, err)
		assert.Len(t, page.Entries, 7)
		assert.LessOrEqual(t, passed, 7+1)
	}
}
