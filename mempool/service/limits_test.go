package service

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func limited(t testing.TB, limits Limits) (*Service, *Session) {
	svc := New(Config{Limits: limits, MayCreate: func(mempool.Peer) bool { return true }})
	t.Cleanup(svc.Close)
	return svc, open(t, svc)
}

// refused asserts that err says which limit is reached.
func refused(t testing.TB, err error, limit string, most int, who string) {
	t.Helper()
	require.ErrorIs(t, err, mempool.ErrLimit)
	var e *LimitError
	require.ErrorAs(t, err, &e)
	assert.Equal(t, limit, e.Limit)
	assert.Equal(t, most, e.Max)
	assert.Equal(t, who, e.Who)
	assert.GreaterOrEqual(t, e.Have, most)
	assert.ErrorContains(t, err, fmt.Sprintf("%s has %d %s, and the limit %s is %d: ", who, e.Have, e.What, limit, most))
	assert.ErrorContains(t, err, "--limit "+limit+"=N")
}

func TestASessionHasSoManyLeasesAndOthersHaveTheirs(t *testing.T) {
	svc, s := limited(t, Limits{SessionLeases: 2})
	other := open(t, svc)
	p, _ := fakePool(t, s, 1<<16)
	publish(t, allocate(t, s, p, 8), mempool.Publication{Name: "x"})
	l, err := s.getLease(context.Background(), "x", false, 0)
	require.NoError(t, err)
	_, err = s.getLease(context.Background(), "x", false, patience)
	refused(t, err, "session-leases", 2, s.rec.String())
	_, err = s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(8), patience)
	refused(t, err, "session-leases", 2, s.rec.String())
	_, err = other.getLease(context.Background(), "x", false, 0)
	require.NoError(t, err)
	release(t, l)
	allocate(t, s, p, 8)
	checkBooks(t, svc)
}

func TestTheServiceHasSoManyBuffersAndLeases(t *testing.T) {
	svc, s := limited(t, Limits{Buffers: 2, Leases: 3})
	p, _ := fakePool(t, s, 1<<16)
	for _, name := range []string{"x", "y"} {
		publish(t, allocate(t, s, p, 8), mempool.Publication{Name: name})
	}
	_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(8), 0)
	refused(t, err, "buffers", 2, "the service")
	_, err = open(t, svc).getLease(context.Background(), "x", false, 0)
	require.NoError(t, err)
	_, err = open(t, svc).getLease(context.Background(), "x", false, 0)
	refused(t, err, "leases", 3, "the service")
	checkBooks(t, svc)
}

func TestLimitsOfARunningServiceCanBeChanged(t *testing.T) {
	svc, s := limited(t, Limits{SessionLeases: 1})
	p, _ := fakePool(t, s, 1<<16)
	allocate(t, s, p, 8)
	_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(8), 0)
	refused(t, err, "session-leases", 1, s.rec.String())
	svc.SetLimits(Limits{SessionLeases: 2})
	allocate(t, s, p, 8)
	svc.SetLimits(Limits{SessionLeases: 1})
	_, err = s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(8), 0)
	refused(t, err, "session-leases", 1, s.rec.String())
	checkBooks(t, svc)
}

func TestAUserHasSoManyNamesOfAllSessionsAndThoseThatAreKept(t *testing.T) {
	svc, s := limited(t, Limits{UserNames: 2})
	p, _ := fakePool(t, s, 1<<16)
	first := open(t, svc)
	l := allocate(t, first, p, 8)
	publish(t, l, mempool.Publication{Name: "kept", Keep: true})
	first.End(mempool.SessionLeft, "", nil)
	publish(t, allocate(t, s, p, 8), mempool.Publication{Name: "x"})
	l = allocate(t, s, p, 8)
	err := l.Publish(mempool.Publication{Name: "y"})
	refused(t, err, "user-names", 2, s.rec.Peer.String())
	publish(t, l, mempool.Publication{Name: "x", Replace: true})
	require.NoError(t, s.Unpublish("kept"))
	publish(t, allocate(t, s, p, 8), mempool.Publication{Name: "y"})
	s.End(mempool.SessionLeft, "", nil)
	assert.Zero(t, svc.ledger.Names.Len())
	checkBooks(t, svc)
}

func TestASessionMapsSoManyBlocksUntilItDropsSome(t *testing.T) {
	svc, s := limited(t, Limits{SessionBlocks: 1})
	p, _ := fakePool(t, s, 1<<16)
	a, b := allocate(t, s, p, 8), allocate(t, s, p, 8)
	_, first, err := a.Export()
	require.NoError(t, err)
	require.True(t, first)
	_, _, err = b.Export()
	refused(t, err, "session-blocks", 1, s.rec.String())
	_, first, err = a.Export()
	require.NoError(t, err)
	require.False(t, first)
	block := a.Grant().Block
	release(t, a)
	require.NoError(t, s.Dropped([]uint64{block}))
	_, _, err = b.Export()
	require.NoError(t, err)
	checkBooks(t, svc)
}

func TestAUserMakesSoManyPoolsAtATime(t *testing.T) {
	svc, s := limited(t, Limits{UserPools: 1})
	spec := mempool.PoolSpec{Name: "a", Kind: mempool.Host, MaxBytes: 4096}
	_, err := s.CreatePool(mempool.PoolSpec{Name: "b", Kind: mempool.Host, Device: "0", MaxBytes: 4096})
	require.ErrorIs(t, err, mempool.ErrInvalid, "what failed does not count")
	p, err := s.CreatePool(spec)
	require.NoError(t, err)
	spec.Name = "b"
	_, err = s.CreatePool(spec)
	refused(t, err, "user-pools", 1, s.rec.Peer.String())
	l := allocate(t, s, p, 8)
	require.NoError(t, s.DestroyPool(p.rec.Info.ID))
	_, err = s.CreatePool(spec)
	refused(t, err, "user-pools", 1, s.rec.Peer.String()) // the pool's memory is not freed yet
	release(t, l)
	_, err = s.CreatePool(spec)
	require.NoError(t, err)
	svc.Close()
	checkBooks(t, svc)
}

// While one allocation waits, other allocations may reach a limit. The service must then refuse the allocation that waited.
func TestAllocationsThatWaitTogetherPassNoLimit(t *testing.T) {
	for limit, limits := range map[string]Limits{"session-leases": {SessionLeases: 2}, "buffers": {Buffers: 2}, "leases": {Leases: 2}} {
		t.Run(limit+", for the driver", func(t *testing.T) {
			svc, s := limited(t, limits)
			p, backing := fakePool(t, s, 1<<16)
			inside, letGo := backing.block()
			line := make(chan error, 3)
			for range cap(line) {
				go func() {
					_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(8), 0)
					line <- err
				}()
			}
			for range cap(line) {
				<-inside
			}
			letGo()
			together(t, s, line, limit)
			checkBooks(t, svc)
			assert.EqualValues(t, 512, svc.Stats().Pools[0].Cached, "the block is free")
		})
		t.Run(limit+", for room", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				svc, s := limited(t, limits)
				p, _ := fakePool(t, s, 2048)
				held := allocate(t, s, p, 2048)
				line := make(chan error, 3)
				for range cap(line) {
					go func() {
						_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(512), patience)
						line <- err
					}()
				}
				synctest.Wait()
				release(t, held)
				together(t, s, line, limit)
				checkBooks(t, svc)
			})
		})
	}
}

// together asserts that the limit, which is two, lets two of three allocations succeed.
func together(t *testing.T, s *Session, line <-chan error, limit string) {
	t.Helper()
	var failed []error
	for range cap(line) {
		if err := <-line; err != nil {
			failed = append(failed, err)
		}
	}
	require.Len(t, failed, 1)
	who := "the service"
	if limit == "session-leases" {
		who = s.rec.String()
	}
	refused(t, failed[0], limit, 2, who)
}
