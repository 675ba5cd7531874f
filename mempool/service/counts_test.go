package service

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestEveryCallOfTheDriverIsCountedAndEveryErrorOfIt(t *testing.T) {
	svc := newService(t)
	s, c := open(t, svc), openClient(t, svc, mempool.Self())
	p, backing := fakePool(t, s, 1<<20)
	backing.set("Allocate", mempool.ErrOutOfMemory)
	_, err := s.allocate(t.Context(), p.rec.Info.ID, mempool.Bytes(512), 0)
	require.ErrorIs(t, err, mempool.ErrOutOfMemory)
	backing.set("Allocate", nil)
	l := allocate(t, c.Session, p, 512)
	backing.set("Export", errors.New("no"))
	_, _, err = l.Export()
	require.Error(t, err)
	release(t, l)
	release(t, allocate(t, c.Session, p, 512)) // the same block again: no driver call
	backing.set("Free", errors.New("no"))
	_, err = s.TrimPool(p.rec.Info.ID, 0)
	require.Error(t, err)
	backing.set("Free", nil)
	backing.set("Close", errors.New("no"))
	require.Error(t, s.DestroyPool(p.rec.Info.ID))
	counts := svc.Counts()
	assert.Equal(t, map[string]uint64{"create": 1, "allocate": 2, "export": 1, "free": 2, "close": 1}, counts.DriverCalls)
	assert.Equal(t, map[string]uint64{"create": 0, "allocate": 1, "export": 1, "free": 1, "close": 1}, counts.DriverErrors)
	fakeFaults.Store(t.Name(), errors.New("no"))
	defer fakeFaults.Delete(t.Name())
	_, err = s.CreatePool(mempool.PoolSpec{Name: "q", Kind: fake, Device: t.Name(), MaxBytes: 512})
	require.Error(t, err)
	assert.EqualValues(t, 1, svc.Counts().DriverErrors["create"])
}

func TestDeathsAndHowLongReclaimingTookAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		p, _ := fakePool(t, open(t, svc), 1<<20)
		for _, took := range []time.Duration{5 * time.Millisecond, 2 * time.Second} {
			dead := open(t, svc)
			allocate(t, dead, p, 512)
			gone := make(chan struct{})
			reclaimed := dead.End(mempool.SessionLost, "", gone)
			time.Sleep(took)
			close(gone)
			<-reclaimed
		}
		open(t, svc).End(mempool.SessionLeft, "", nil)
		counts := svc.Counts()
		assert.EqualValues(t, 2, counts.Endings[mempool.SessionLost])
		assert.EqualValues(t, 1, counts.Endings[mempool.SessionLeft])
		assert.EqualValues(t, 2, counts.Events[mempool.SessionEnded], "the third did nothing, which is no news")
		assert.EqualValues(t, 2, counts.Reclaims.Count)
		assert.Equal(t, 2005*time.Millisecond, counts.Reclaims.Sum)
		assert.EqualValues(t, 0, counts.Reclaims.Buckets[time.Millisecond])
		assert.EqualValues(t, 1, counts.Reclaims.Buckets[time.Second])
		assert.EqualValues(t, 2, counts.Reclaims.Buckets[10*time.Second])
	})
}

func TestRequestsThatWaitAreCountedByWhatTheyWaitFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		p, _ := fakePool(t, s, 512)
		l := allocate(t, s, p, 512)
		info := l.Grant()
		made, err := s.MakeChannel(mempool.ChannelSpec{Name: "made", Pool: p.rec.Info.ID, Capacity: 1})
		require.NoError(t, err)
		ended := make(chan error, 6)
		for _, wait := range []func() error{
			func() error {
				_, err := s.allocate(t.Context(), p.rec.Info.ID, mempool.Bytes(512), time.Hour)
				return err
			},
			func() error {
				_, err := s.leaseOf(t.Context(), info.Buffer, info.Generation, false, time.Hour)
				return err
			},
			func() error { _, err := s.getLease(t.Context(), "x", false, time.Hour); return err },
			func() error { _, err := s.OpenPool(t.Context(), "x", time.Hour); return err },
			func() error { _, err := s.FindChannel(t.Context(), "x", time.Hour); return err },
			func() error { return s.Channel(made.ID).AwaitConsumers(t.Context(), 1, time.Hour) },
		} {
			go func() { ended <- wait() }()
		}
		synctest.Wait()
		assert.Equal(t, map[string]int{"room": 1, "buffer": 1, "name": 1, "pool": 1, "channel": 1, "consumers": 1}, svc.Counts().Waiting)
		sessions := all(t, 9, s.View().Sessions)
		assert.Equal(t, 6, sessions[0].Waits)
		assert.NotEmpty(t, sessions[0].WaitsFor)
		s.End(mempool.SessionLeft, "", nil)
		for range 6 {
			assert.ErrorIs(t, <-ended, mempool.ErrClosed)
		}
		for what, n := range svc.Counts().Waiting {
			assert.Zero(t, n, what)
		}
	})
}
