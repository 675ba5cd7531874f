package service

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// process stands for a process of a user. It makes sessions, one after the other. When the channel `gone` is closed, the process has ended.
type process struct {
	*testing.T
	svc  *Service
	peer mempool.Peer
	gone chan struct{}
}

func newProcess(t *testing.T, svc *Service, id uint64, uid uint32) process {
	return process{t, svc, mempool.Peer{UID: uid, Process: id}, make(chan struct{})}
}

func (p process) connect() *Session {
	p.Helper()
	return openClient(p, p.svc, p.peer).Session
}

// leave makes a session of the process. The session allocates n bytes, and then ends without releasing its lease.
func (p process) leave(pool *Pool, n uint64) (reclaimed <-chan struct{}) {
	p.Helper()
	s := p.connect()
	allocate(p, s, pool, n)
	return s.End(mempool.SessionLeft, "", p.gone)
}

func tryAllocate(s *Session, p *Pool, n uint64) error {
	_, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(n), 0)
	return err
}

func TestWhatEndedSessionsOfALivingProcessHoldCountsForItsNext(t *testing.T) {
	svc := newService(t)
	owner := open(t, svc)
	pool := createPool(t, owner, mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 8192, SessionBytes: 1024, Access: mempool.Access{UIDs: []uint32{7, 8}}})
	greedy, other, alike := newProcess(t, svc, 1, 7), newProcess(t, svc, 2, 7), newProcess(t, svc, 1, 8)
	first, second := greedy.leave(pool, 512), greedy.leave(pool, 512)
	s := greedy.connect()
	err := tryAllocate(s, pool, 1)
	require.ErrorIs(t, err, mempool.ErrLimit)
	require.ErrorIs(t, err, mempool.ErrRecalling)
	assert.EqualError(t, err, `limit reached: session 4 has 1024 bytes, asks for 512 bytes more, and one session may take 1024 bytes in pool "p": `+
		`release some, or make a pool with a larger session_bytes; 1024 bytes of that are free blocks that no other session `+
		`can use until the process has finished its work on them and unmapped them (unused blocks are being asked back)`)
	st := s.View().Stats().Pools[0]
	assert.Equal(t, []uint64{0, 1024, 1024, 1024}, []uint64{st.Leased, st.Held, st.Session, st.User})
	checkBooks(t, svc)
	for _, p := range []process{other, alike} {
		allocate(t, p.connect(), pool, 1024)
	}
	assert.EqualValues(t, 2048, s.View().Stats().Pools[0].User, "of both processes")
	close(greedy.gone)
	<-first
	<-second
	allocate(t, s, pool, 1024)
	checkBooks(t, svc)
}

func TestAUserTakesUpToItsLimitInAllItsProcesses(t *testing.T) {
	svc := newService(t)
	owner := open(t, svc)
	pool := createPool(t, owner, mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 8192, UserBytes: 1024, Access: mempool.Access{UIDs: []uint32{7, 8}}})
	a, b, stranger := newProcess(t, svc, 1, 7), newProcess(t, svc, 2, 7), newProcess(t, svc, 3, 8)
	a.leave(pool, 512)
	s := b.connect()
	kept := allocate(t, s, pool, 512)
	publish(t, kept, mempool.Publication{Name: "x", Keep: true})
	s.End(mempool.SessionLeft, "", nil)
	last := b.connect()
	err := tryAllocate(last, pool, 1)
	require.ErrorIs(t, err, mempool.ErrLimit)
	assert.EqualError(t, err, `limit reached: user 7 has 1024 bytes, asks for 512 bytes more, and one user may take 1024 bytes in pool "p": `+
		`release some in any session of that user, or make a pool with a larger user_bytes`)
	assert.Equal(t, []uint64{0, 1024}, []uint64{last.View().Stats().Pools[0].Session, last.View().Stats().Pools[0].User}, "names that stay count too")
	allocate(t, stranger.connect(), pool, 1024)
	require.NoError(t, last.Unpublish("x"))
	allocate(t, last, pool, 512)
	checkBooks(t, svc)
}

func TestABlockThatIsAskedBackCountsForThoseWhoStillMapIt(t *testing.T) {
	svc := newService(t)
	slow, quick := openClient(t, svc, mempool.Self()), openClient(t, svc, mempool.Self())
	pool := createPool(t, slow.Session, mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 1024, SessionBytes: 512})
	l := allocate(t, slow.Session, pool, 512)
	block := mapBlock(t, l)
	release(t, l)
	assert.Zero(t, slow.View().Stats().Pools[0].Session, "others can have it")
	_, err := quick.TrimPool(pool.rec.Info.ID, 0)
	require.NoError(t, err)
	require.ErrorIs(t, tryAllocate(slow.Session, pool, 1), mempool.ErrRecalling)
	assert.EqualValues(t, 512, slow.View().Stats().Pools[0].Session)
	allocate(t, quick.Session, pool, 1)
	require.NoError(t, slow.Dropped([]uint64{block}))
	allocate(t, slow.Session, pool, 1)
	checkBooks(t, svc)
}

// stall allocates and releases a block with a fence that is not reached.
func stall(t *testing.T, w *worker, p *Pool, n uint64) (block uint64, unreached mempool.Fence) {
	t.Helper()
	l := allocate(t, w.Session, p, n)
	unreached = w.fence()
	require.NoError(t, l.ReleaseAt(false, []mempool.Fence{unreached}))
	return l.Grant().Block, unreached
}

func TestABlockWithWorkUnderWayIsTakenWhereThereIsNoOther(t *testing.T) {
	svc := newService(t)
	owner := open(t, svc)
	p, backing := fakePool(t, owner, 2048)
	bad, good := hire(t, svc), hire(t, svc)
	stalled, unreached := stall(t, bad, p, 512)

	var leases []Lease
	for range 3 {
		l := allocate(t, good.Session, p, 512)
		assert.NotEqual(t, stalled, l.Grant().Block, "the pool has room")
		assert.Empty(t, l.Grant().Wait)
		leases = append(leases, l)
	}
	for _, l := range leases {
		release(t, l)
	}
	large := allocate(t, good.Session, p, 1536)
	assert.Equal(t, 3, backing.frees, "room is made of blocks that are free for use")
	checkBooks(t, svc)
	assert.Equal(t, []mempool.Fence{unreached}, allocate(t, good.Session, p, 512).Grant().Wait, "now there is no other")
	release(t, large)
	checkBooks(t, svc)
}

func TestASessionWithoutTimelinesIsNotGivenABlockWithWorkUnderWayWhileThereIsRoom(t *testing.T) {
	svc := newService(t)
	s := openClient(t, svc, mempool.Self())
	p, _ := fakePool(t, s.Session, 1024)
	stall(t, hire(t, svc), p, 512)
	for range 3 {
		l := allocate(t, s.Session, p, 512)
		require.NoError(t, l.AwaitWork(context.Background(), 0))
		release(t, l)
	}
}

func TestABlockWithoutWorkIsFoundAmongManyThatHaveSome(t *testing.T) {
	svc := newService(t)
	owner := open(t, svc)
	p, backing := fakePool(t, owner, 64*512)
	bad := hire(t, svc)
	var leases []Lease
	for range 64 {
		leases = append(leases, allocate(t, bad.Session, p, 512))
	}
	for i, l := range leases {
		var done []mempool.Fence
		if i != 31 {
			done = []mempool.Fence{bad.fence()}
		}
		require.NoError(t, l.ReleaseAt(false, done))
	}
	l := allocate(t, owner, p, 512)
	assert.Equal(t, leases[31].Grant().Block, l.Grant().Block)
	assert.Zero(t, backing.frees)
	checkBooks(t, svc)
}

func TestWhereThereIsNoMemoryForANewBlockOneWithWorkUnderWayIsTaken(t *testing.T) {
	svc := newService(t)
	p, backing := fakePool(t, open(t, svc), 4096)
	w := hire(t, svc)
	stalled, unreached := stall(t, w, p, 512)
	backing.set("Allocate", typed.Errorf(mempool.ErrOutOfMemory, "none"))
	l := allocate(t, w.Session, p, 512)
	assert.Equal(t, stalled, l.Grant().Block)
	assert.Equal(t, []mempool.Fence{unreached}, l.Grant().Wait)
	assert.ErrorIs(t, tryAllocate(w.Session, p, 512), mempool.ErrOutOfMemory)
	checkBooks(t, svc)
}

func TestAPendingBlockCountsForThoseWhoseWorkIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		owner := open(t, svc)
		p := createPool(t, owner, mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 8192, SessionBytes: 1024})
		bad, good := hire(t, svc), hire(t, svc)
		stalled, unreached := stall(t, bad, p, 1024)
		st := bad.View().Stats().Pools[0]
		assert.Equal(t, []uint64{0, 1024, 1024, 1024}, []uint64{st.Leased, st.Cached, st.Session, st.User})
		checkBooks(t, svc)
		allocate(t, good.Session, p, 1024)
		require.ErrorIs(t, tryAllocate(bad.Session, p, 512), mempool.ErrLimit)
		own := allocate(t, bad.Session, p, 1024)
		assert.Equal(t, stalled, own.Grant().Block, "what counts for it already it may have again")
		release(t, own)
		got := make(chan error)
		go func() {
			_, err := bad.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(512), patience)
			got <- err
		}()
		synctest.Wait()
		bad.reach(unreached)
		require.NoError(t, <-got, "nobody told it")
		assert.EqualValues(t, 512, bad.View().Stats().Pools[0].Session)
		checkBooks(t, svc)
	})
}

func TestOneLookAtBlocksWithWorkUnderWayIsForAllWhoWaitAndIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const blocks, waiters = 4 * manyCharged, 8
		svc := newService(t)
		owner := open(t, svc)
		p := createPool(t, owner, mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 2 * blocks * 512, SessionBytes: blocks * 512})
		w := hire(t, svc)
		leases := make([]Lease, blocks)
		for i := range leases {
			leases[i] = allocate(t, w.Session, p, 512)
		}
		unreached := w.fence()
		for _, l := range leases {
			require.NoError(t, l.ReleaseAt(false, []mempool.Fence{unreached}))
		}
		got := make(chan error, waiters)
		for range waiters {
			go func() {
				_, err := w.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1024), patience)
				got <- err
			}()
		}
		synctest.Wait()
		w.reach(unreached)
		for range waiters {
			require.NoError(t, <-got)
		}
		svc.mu.Lock()
		left := p.rec.Charged()
		svc.mu.Unlock()
		assert.GreaterOrEqual(t, left, blocks-2*manyCharged, "however many wait")
		checkBooks(t, svc)
	})
}

func TestATrimmedPoolGivesBackWhatWorkIsUnderWayOnOnceItIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		owner := open(t, svc)
		p, backing := fakePool(t, owner, 4096)
		w := hire(t, svc)
		_, unreached := stall(t, w, p, 512)
		_, err := owner.TrimPool(p.rec.Info.ID, 0)
		require.NoError(t, err)
		st := w.View().Stats().Pools[0]
		assert.Equal(t, []uint64{512, 512}, []uint64{st.Held, st.Session})
		w.reach(unreached)
		svc.drains.Wait()
		assert.Equal(t, 1, backing.frees)
		checkBooks(t, svc)
	})
}
