package mempool

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAPoolIsFoundByNameAndID(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	ctx := context.Background()
	p := createPool(t, s, PoolSpec{Name: "p", Kind: Host, MaxBytes: 8192, SessionBytes: 4096})
	assert.Equal(t, PoolInfo{ID: 1, Name: "p", Kind: Host, Device: NoDevice, MaxBytes: 8192, SessionBytes: 4096}, p.Info())
	assert.Len(t, p.Export().Files, 1)
	byName, err := s.OpenPool(ctx, "p", 0)
	require.NoError(t, err)
	byID, err := s.FindPool(1)
	require.NoError(t, err)
	assert.Same(t, p, byName)
	assert.Same(t, p, byID)
	_, err = s.FindPool(2)
	assert.ErrorIs(t, err, ErrNotFound)
	_, err = s.Allocate(ctx, 2, Bytes(1), 0)
	assert.ErrorIs(t, err, ErrNotFound)
	_, err = s.Allocate(ctx, 1, Tensor{}, 0)
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = s.CreatePool(PoolSpec{Name: "p", Kind: fake, MaxBytes: 512})
	assert.ErrorIs(t, err, ErrExists)
	_, err = s.CreatePool(PoolSpec{})
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = s.OpenPool(ctx, "\x00", 0)
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = s.OpenPool(ctx, "q", 0)
	assert.ErrorIs(t, err, ErrNotFound)
}

func TestOpenWaitsForThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		_, err := s.OpenPool(context.Background(), "p", time.Second)
		assert.ErrorIs(t, err, ErrTimeout)
		found := make(chan *Pool)
		go func() {
			p, err := s.OpenPool(context.Background(), "p", patience)
			assert.NoError(t, err)
			found <- p
		}()
		synctest.Wait()
		p := createPool(t, s, PoolSpec{Name: "p", Kind: fake, MaxBytes: 512})
		assert.Same(t, p, <-found)
	})
}

func TestOnlyWhoMayCreatesPools(t *testing.T) {
	svc := NewService(Config{MayCreate: func(p Peer) bool { return p.UID == 7 }})
	defer svc.Close()
	_, err := openClient(t, svc, Peer{UID: 8}).CreatePool(PoolSpec{Name: "p", Kind: fake, MaxBytes: 512})
	assert.ErrorIs(t, err, ErrDenied)
	createPool(t, openClient(t, svc, Peer{UID: 7}).Session, PoolSpec{Name: "p", Kind: fake, MaxBytes: 512})
}
