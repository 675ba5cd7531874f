package service

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestAPoolIsClosedToStrangersHoweverTheyCome(t *testing.T) {
	svc := newService(t)
	owner := open(t, svc)
	p, _ := fakePool(t, owner, 1<<20)
	l := allocate(t, owner, p, 10)
	info := l.Grant()
	require.NoError(t, l.Publish(mempool.Publication{Name: "x"}))
	stranger := openClient(t, svc, mempool.Peer{UID: mempool.Self().UID + 1})
	ctx := context.Background()

	_, err := stranger.OpenPool(ctx, p.rec.Info.Name, 0)
	assert.ErrorIs(t, err, mempool.ErrNotFound)
	_, err = stranger.FindPool(p.rec.Info.ID)
	assert.ErrorIs(t, err, mempool.ErrNotFound)
	_, err = stranger.allocate(ctx, p.rec.Info.ID, mempool.Bytes(1), 0)
	assert.ErrorIs(t, err, mempool.ErrNotFound)
	_, err = stranger.getLease(ctx, "x", false, 0)
	assert.ErrorIs(t, err, mempool.ErrNotFound)
	_, err = stranger.leaseOf(ctx, info.Buffer, info.Generation, false, patience)
	assert.ErrorIs(t, err, mempool.ErrStale)
	_, err = stranger.TrimPool(p.rec.Info.ID, 0)
	assert.ErrorIs(t, err, mempool.ErrNotFound)
	assert.ErrorIs(t, stranger.DestroyPool(p.rec.Info.ID), mempool.ErrNotFound)
	assert.ErrorContains(t, stranger.Unpublish("x"), "may use (poolsvc names shows all)")
	assert.ErrorIs(t, stranger.Unpublish("x"), mempool.ErrNotFound)
	_, err = stranger.CreatePool(mempool.PoolSpec{Name: "mine", Kind: fake, MaxBytes: 512})
	assert.ErrorIs(t, err, mempool.ErrDenied)
	assert.Empty(t, stranger.View().Stats().Pools)
	assert.Len(t, svc.Stats().Pools, 1)
}

func TestAUserOfAPoolMayNotDestroyIt(t *testing.T) {
	svc := newService(t)
	self := mempool.Self()
	p := createPool(t, open(t, svc), mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 1 << 20,
		Access: mempool.Access{UIDs: []uint32{self.UID, self.UID + 1}}})
	user := openClient(t, svc, mempool.Peer{UID: self.UID + 1})
	assert.ErrorIs(t, user.DestroyPool(p.rec.Info.ID), mempool.ErrDenied)
	assert.Len(t, user.View().Stats().Pools, 1)
}

// The maker of a pool and the service's user may destroy the pool even if they may not use it. Without this rule, no user could destroy a
// pool that no user may use, and the name of the pool would never be free.
func TestAPoolsMakerAndTheServicesUserMayAlwaysDestroyIt(t *testing.T) {
	maker, listed, creator := mempool.Peer{UID: 7}, mempool.Peer{UID: 8}, mempool.Peer{UID: 9}
	svc := New(Config{MayCreate: func(p mempool.Peer) bool { return p.UID == maker.UID || p.UID == creator.UID }})
	t.Cleanup(svc.Close)
	for _, c := range []struct {
		who   string
		peer  mempool.Peer
		sees  int
		fails error
	}{
		{"its maker", maker, 1, nil},
		{"the service's user", mempool.Self(), 1, nil},
		{"a user on the list who may not create pools", listed, 1, mempool.ErrDenied},
		{"one who may create pools and is not on the list", creator, 0, mempool.ErrNotFound},
		{"a stranger", mempool.Peer{UID: 10}, 0, mempool.ErrNotFound},
	} {
		p := createPool(t, openClient(t, svc, maker).Session, mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 512,
			Access: mempool.Access{UIDs: []uint32{listed.UID}}})
		s := openClient(t, svc, c.peer)
		assert.Len(t, s.View().Stats().Pools, c.sees, c.who)
		assert.ErrorIs(t, s.DestroyPool(p.rec.Info.ID), c.fails, c.who)
		if c.fails == nil {
			_, err := s.FindPool(p.rec.Info.ID)
			assert.ErrorIs(t, err, mempool.ErrNotFound, "it is gone")
			continue
		}
		_, err := openClient(t, svc, maker).FindPool(p.rec.Info.ID)
		assert.ErrorIs(t, err, mempool.ErrDenied, "to destroy it is not to use it")
		require.NoError(t, openClient(t, svc, mempool.Self()).DestroyPool(p.rec.Info.ID))
	}
	both := createPool(t, openClient(t, svc, maker).Session, mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 512,
		Access: mempool.Access{UIDs: []uint32{creator.UID}}})
	assert.NoError(t, openClient(t, svc, creator).DestroyPool(both.rec.Info.ID), "who may create pools may destroy those that it may use")
}

func TestTheListIsTheSpecsNoMore(t *testing.T) {
	svc := newService(t)
	uids := []uint32{mempool.Self().UID}
	p := createPool(t, open(t, svc), mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 512, Access: mempool.Access{UIDs: uids}})
	uids[0]++
	_, err := open(t, svc).FindPool(p.rec.Info.ID)
	assert.NoError(t, err)
}

func TestSelfIsThisProcess(t *testing.T) {
	svc := New(Config{MayCreate: func(p mempool.Peer) bool { return p.PID == mempool.Self().PID }})
	defer svc.Close()
	createPool(t, open(t, svc), mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 512})
}
