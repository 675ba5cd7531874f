package bridge

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a service of its own for a test, and returns it and its socket.
func serve(t *testing.T, c ServerConfig) (*mempool.Service, string) {
	t.Helper()
	svc := mempool.NewService(mempool.Config{})
	path := filepath.Join(t.TempDir(), "run", "poolsvc.sock")
	server, err := Listen(path, svc, c)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, server.Close())
		svc.Close()
	})
	return svc, path
}

func dial(t *testing.T, path string) *Client {
	t.Helper()
	c, err := Dial(t.Context(), path)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

func hostPool(name string, bytes uint64) mempool.PoolSpec {
	return mempool.PoolSpec{Name: name, Kind: mempool.Host, MaxBytes: bytes}
}

func TestWhatOneClientPublishesAnotherReads(t *testing.T) {
	_, path := serve(t, ServerConfig{})
	producer, consumer := dial(t, path), dial(t, path)
	ctx := context.Background()
	pool, err := producer.CreatePool(ctx, hostPool("frames", 1<<20))
	require.NoError(t, err)

	got := make(chan *Lease, 1)
	go func() {
		l, err := consumer.Get(ctx, "greeting", LeaseOptions{Wait: time.Minute})
		assert.NoError(t, err)
		got <- l
	}()
	out, err := pool.Allocate(ctx, mempool.Bytes(5), 0)
	require.NoError(t, err)
	require.NoError(t, out.CopyFrom(0, []byte("hello")))
	require.NoError(t, out.Publish(ctx, mempool.Publication{Name: "greeting"}))

	in := <-got
	require.NotNil(t, in)
	text := make([]byte, 5)
	require.NoError(t, in.CopyTo(text, 0))
	assert.Equal(t, "hello", string(text))
	assert.ErrorIs(t, in.CopyFrom(0, text), ErrInvalid, "a read lease")
	require.NoError(t, in.Release(false))
	assert.ErrorIs(t, in.Release(false), ErrReleased)
	assert.ErrorIs(t, in.CopyTo(text, 0), ErrReleased)
}

func TestAFullPoolRecallsWhatNobodyUses(t *testing.T) {
	svc, path := serve(t, ServerConfig{})
	a, b := dial(t, path), dial(t, path)
	ctx := context.Background()
	pool, err := a.CreatePool(ctx, hostPool("small", 1<<20))
	require.NoError(t, err)
	for range 4 { // blocks of one size, mapped by both
		l, err := pool.Allocate(ctx, mempool.Bytes(256<<10), 0)
		require.NoError(t, err)
		require.NoError(t, l.Publish(ctx, mempool.Publication{Name: "x", Replace: true}))
		r, err := b.Get(ctx, "x", LeaseOptions{})
		require.NoError(t, err)
		defer r.Release(false)
		defer l.Release(false)
	}
	_, err = pool.Allocate(ctx, mempool.Bytes(1<<20), 0)
	require.ErrorIs(t, err, ErrLimit)
	require.NoError(t, a.Unpublish(ctx, "x"))
	for _, c := range []*Client{a, b} {
		c.mu.Lock()
		var held []*Lease
		for l := range c.leases {
			held = append(held, l)
		}
		c.mu.Unlock()
		for _, l := range held {
			require.NoError(t, l.Release(false))
		}
	}
	_, err = b.Stats(ctx) // its releases have arrived
	require.NoError(t, err)
	all, err := pool.Allocate(ctx, mempool.Bytes(1<<20), 0)
	require.NoError(t, err, "after both clients gave up their mappings")
	assert.EqualValues(t, 1<<20, svc.Stats().Pools[0].Leased)
	require.NoError(t, all.Release(false))
}
