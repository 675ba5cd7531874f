package service

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestAPoolIsFoundByNameAndID(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	ctx := context.Background()
	p := createPool(t, s, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 8192, SessionBytes: 4096})
	assert.Equal(t, mempool.PoolInfo{ID: 1, Name: "p", Kind: mempool.Host, Device: mempool.NoDevice, MaxBytes: 8192, SessionBytes: 4096}, p.Info())
	assert.Len(t, p.Export().Files, 1)
	byName, err := s.OpenPool(ctx, "p", 0)
	require.NoError(t, err)
	byID, err := s.FindPool(1)
	require.NoError(t, err)
	assert.Same(t, p, byName)
	assert.Same(t, p, byID)
	_, err = s.FindPool(2)
	assert.ErrorIs(t, err, mempool.ErrNotFound)
	_, err = s.Allocate(ctx, 2, mempool.Bytes(1), 0, 0)
	assert.ErrorIs(t, err, mempool.ErrNotFound)
	_, err = s.Allocate(ctx, 1, mempool.Tensor{}, 0, 0)
	assert.ErrorIs(t, err, mempool.ErrInvalid)
	_, err = s.CreatePool(mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 512})
	assert.ErrorIs(t, err, mempool.ErrExists)
	_, err = s.CreatePool(mempool.PoolSpec{})
	assert.ErrorIs(t, err, mempool.ErrInvalid)
	_, err = s.OpenPool(ctx, "\x00", 0)
	assert.ErrorIs(t, err, mempool.ErrInvalid)
	_, err = s.OpenPool(ctx, "q", 0)
	assert.ErrorIs(t, err, mempool.ErrNotFound)
}

func TestOpenWaitsForThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		_, err := s.OpenPool(context.Background(), "p", time.Second)
		assert.ErrorIs(t, err, mempool.ErrTimeout)
		found := make(chan *Pool)
		go func() {
			p, err := s.OpenPool(context.Background(), "p", patience)
			assert.NoError(t, err)
			found <- p
		}()
		synctest.Wait()
		p := createPool(t, s, mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 512})
		assert.Same(t, p, <-found)
	})
}

// underWay opens a session that begins to make a pool, and returns a gate. The session waits inside CreatePool until the test sends to the
// gate's channel `outcome`.
func underWay(t *testing.T, svc *Service, spec mempool.PoolSpec) fakeGate {
	t.Helper()
	g := holdUp(t, spec.Name)
	s := open(t, svc)
	made := make(chan struct{})
	go func() {
		defer close(made)
		_, _ = s.CreatePool(spec)
	}()
	<-g.inside
	t.Cleanup(func() { <-made })
	return g
}

func TestOpeningWaitsForAPoolThatIsBeingMade(t *testing.T) {
	spec := mempool.PoolSpec{Name: t.Name(), Kind: fake, MaxBytes: 512}
	for _, wait := range []time.Duration{0, time.Nanosecond} {
		synctest.Test(t, func(t *testing.T) {
			svc := newService(t)
			g := underWay(t, svc, spec)
			found := make(chan *Pool)
			s := open(t, svc)
			go func() {
				p, err := s.OpenPool(t.Context(), spec.Name, wait)
				assert.NoError(t, err, "it is made, however long that takes")
				found <- p
			}()
			time.Sleep(time.Hour)
			g.outcome <- nil
			assert.Equal(t, spec.Name, (<-found).Info().Name)
		})
	}
}

func TestOpeningAPoolThatCouldNotBeMadeFindsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := mempool.PoolSpec{Name: t.Name(), Kind: fake, MaxBytes: 512}
		svc := newService(t)
		g := underWay(t, svc, spec)
		s := open(t, svc)
		opened := make(chan error)
		go func() {
			_, err := s.OpenPool(t.Context(), spec.Name, 0)
			opened <- err
		}()
		synctest.Wait()
		g.outcome <- errors.New("a fault")
		assert.ErrorIs(t, <-opened, mempool.ErrNotFound)
	})
}

func TestWaitingForAPoolThatIsBeingMadeEndsWithItsContextAndItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := mempool.PoolSpec{Name: t.Name(), Kind: fake, MaxBytes: 512}
		svc := newService(t)
		g := underWay(t, svc, spec)
		ctx, cancel := context.WithCancel(t.Context())
		s := open(t, svc)
		opened, ensured := make(chan error), make(chan error)
		go func() {
			_, err := s.OpenPool(ctx, spec.Name, 0)
			opened <- err
		}()
		go func() {
			_, err := s.EnsurePool(t.Context(), spec)
			ensured <- err
		}()
		synctest.Wait()
		cancel()
		assert.ErrorIs(t, <-opened, context.Canceled)
		s.End(mempool.SessionLeft, "", nil)
		assert.ErrorIs(t, <-ensured, mempool.ErrClosed)
		g.outcome <- nil
	})
}

func TestManyWhoEnsureAPoolHaveTheSameOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := mempool.PoolSpec{Name: t.Name(), Kind: fake, MaxBytes: 512}
		svc := newService(t)
		g := holdUp(t, spec.Name)
		const many = 8
		found := make(chan *Pool, many)
		for range many {
			s := open(t, svc)
			go func() {
				p, err := s.EnsurePool(t.Context(), spec)
				assert.NoError(t, err)
				found <- p
			}()
		}
		<-g.inside
		synctest.Wait()
		g.outcome <- nil
		first := <-found
		for range many - 1 {
			assert.Same(t, first, <-found)
		}
		assert.Empty(t, g.inside, "it was made once")
	})
}

func TestWhoEnsuresAPoolMakesItWhereAnotherFailedTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := mempool.PoolSpec{Name: t.Name(), Kind: fake, MaxBytes: 512}
		svc := newService(t)
		g := underWay(t, svc, spec)
		s := open(t, svc)
		ensured := make(chan error)
		go func() {
			_, err := s.EnsurePool(t.Context(), spec)
			ensured <- err
		}()
		synctest.Wait()
		g.outcome <- errors.New("a fault")
		<-g.inside
		g.outcome <- nil
		assert.NoError(t, <-ensured)
	})
}

func TestEnsuringAPoolNamesHowTheOneThereDiffers(t *testing.T) {
	svc := New(Config{MayCreate: func(p mempool.Peer) bool { return p.UID == mempool.Self().UID }})
	defer svc.Close()
	s := open(t, svc)
	like := mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 4096, SessionBytes: 512,
		Access: mempool.Access{UIDs: []uint32{mempool.Self().UID, 4242}, GIDs: []uint32{7}}}
	p := createPool(t, s, like)
	again := like
	again.Access = mempool.Access{UIDs: []uint32{4242, mempool.Self().UID, 4242}, GIDs: []uint32{7}} // the same users
	found, err := s.EnsurePool(t.Context(), again)
	require.NoError(t, err)
	assert.Same(t, p, found)
	for want, change := range map[string]func(*mempool.PoolSpec){
		"kind is fake, not host":                                    func(spec *mempool.PoolSpec) { spec.Kind = mempool.Host },
		"max_bytes is 4096, not 8192":                               func(spec *mempool.PoolSpec) { spec.MaxBytes = 8192 },
		"session_bytes is 512, not 0":                               func(spec *mempool.PoolSpec) { spec.SessionBytes = 0 },
		"device is none, not 0":                                     func(spec *mempool.PoolSpec) { spec.Device = "0" },
		"gids is [7], not []":                                       func(spec *mempool.PoolSpec) { spec.Access.GIDs = nil },
		"max_bytes is 4096, not 1; its session_bytes is 512, not 1": func(spec *mempool.PoolSpec) { spec.MaxBytes, spec.SessionBytes = 1, 1 },
	} {
		spec := like
		change(&spec)
		_, err := s.EnsurePool(t.Context(), spec)
		require.ErrorIs(t, err, mempool.ErrExists)
		assert.ErrorContains(t, err, want)
	}
	mine := like
	mine.Access = mempool.Access{}
	_, err = s.EnsurePool(t.Context(), mine)
	require.ErrorIs(t, err, mempool.ErrExists)
	assert.ErrorContains(t, err, "uids is", "without a list it is this user alone")

	listed := openClient(t, svc, mempool.Peer{UID: 4242}).Session
	found, err = listed.EnsurePool(t.Context(), like)
	require.NoError(t, err, "who may use it may open it so, too")
	assert.Same(t, p, found)
	stranger := openClient(t, svc, mempool.Peer{UID: 1}).Session
	_, err = stranger.EnsurePool(t.Context(), like)
	require.ErrorIs(t, err, mempool.ErrDenied)
	other := like
	other.Name = "q"
	_, err = listed.EnsurePool(t.Context(), other)
	require.ErrorIs(t, err, mempool.ErrDenied, "one that has to be made")
	_, err = s.EnsurePool(t.Context(), mempool.PoolSpec{})
	require.ErrorIs(t, err, mempool.ErrInvalid)
}

func TestOnlyWhoMayCreatesPools(t *testing.T) {
	svc := New(Config{MayCreate: func(p mempool.Peer) bool { return p.UID == 7 }})
	defer svc.Close()
	_, err := openClient(t, svc, mempool.Peer{UID: 8}).CreatePool(mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 512})
	assert.ErrorIs(t, err, mempool.ErrDenied)
	createPool(t, openClient(t, svc, mempool.Peer{UID: 7}).Session, mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 512})
}

// trap is an allocation whose method Free first calls the function `spring`. The service does not hold its lock during this call.
type trap struct {
	mempool.Allocation
	spring func()
}

func (a trap) Free() error {
	a.spring()
	return a.Allocation.Free()
}

func TestAPoolThatIsDestroyedWhileItIsOpenedIsNotReturned(t *testing.T) {
	spec := mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 4096}
	for name, open := range map[string]func(s *Session) (*Pool, error){
		"ensured": func(s *Session) (*Pool, error) { return s.EnsurePool(t.Context(), spec) },
		"opened":  func(s *Session) (*Pool, error) { return s.OpenPool(t.Context(), spec.Name, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			svc, s := limited(t, Limits{})
			other, _ := fakePool(t, s, 4096)
			l := allocate(t, s, other, 512)
			memory := svc.memoryOf(l.rec.Buffer.Block)
			p := createPool(t, s, spec)
			kept := allocate(t, s, p, 512) // while this block is leased, the pool is not closed yet
			memory.Allocation = trap{memory.Allocation, func() { assert.NoError(t, s.DestroyPool(p.rec.Info.ID)) }}
			release(t, l)
			svc.mu.Lock()
			other.retire(512, true) // from now on, the block is to be freed
			svc.mu.Unlock()
			got, err := open(s)
			require.NoError(t, err)
			svc.mu.Lock()
			assert.False(t, got.rec.Closing)
			svc.mu.Unlock()
			release(t, kept)
		})
	}
}
