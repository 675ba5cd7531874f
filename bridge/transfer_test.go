package bridge

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestWhatOneClientPublishesAnotherReads(t *testing.T) {
	_, path := serve(t, server.Config{})
	producer, consumer := dial(t, path), dial(t, path)
	ctx := context.Background()
	pool, err := producer.CreatePool(ctx, hostPool("frames", 1<<20))
	require.NoError(t, err)

	got := make(chan *Lease, 1)
	go func() {
		l, err := consumer.Get(ctx, "greeting", LeaseOptions{})
		assert.NoError(t, err)
		got <- l
	}()
	out, err := pool.TryAllocate(ctx, mempool.Bytes(5))
	require.NoError(t, err)
	require.NoError(t, out.CopyFrom(context.Background(), 0, []byte("hello")))
	require.NoError(t, out.Publish(ctx, mempool.Publication{Name: "greeting"}))

	in := <-got
	require.NotNil(t, in)
	text := make([]byte, 5)
	require.NoError(t, in.CopyTo(context.Background(), text, 0))
	assert.Equal(t, "hello", string(text))
	assert.ErrorIs(t, in.CopyFrom(context.Background(), 0, text), ErrInvalid, "a read lease")
	require.NoError(t, in.Release(false))
	assert.NoError(t, in.Release(false), "again")
	err = in.CopyTo(context.Background(), text, 0)
	assert.ErrorIs(t, err, ErrReleased)
	assert.ErrorContains(t, err, "of uint8[5], has ended")
}

func TestAFullPoolRecallsWhatNobodyUses(t *testing.T) {
	svc, path := serve(t, server.Config{})
	a, b := dial(t, path), dial(t, path)
	ctx := context.Background()
	pool, err := a.CreatePool(ctx, hostPool("small", 1<<20))
	require.NoError(t, err)
	for range 4 { // make blocks of one size, which both clients map
		l, err := pool.TryAllocate(ctx, mempool.Bytes(256<<10))
		require.NoError(t, err)
		require.NoError(t, l.Publish(ctx, mempool.Publication{Name: "x", Replace: true}))
		r, err := b.TryGet(ctx, "x", LeaseOptions{})
		require.NoError(t, err)
		defer r.Release(false)
		defer l.Release(false)
	}
	_, err = pool.TryAllocate(ctx, mempool.Bytes(1<<20))
	require.ErrorIs(t, err, ErrLimit)
	require.NoError(t, a.Unpublish(ctx, "x"))
	for _, c := range []*Client{a, b} {
		for _, l := range c.session.Blocks.Leases() {
			require.NoError(t, l.Release(session.Unasked, false))
		}
	}
	_, err = b.Stats(ctx) // when the reply comes, the service has handled the releases of b
	require.NoError(t, err)
	all, err := pool.TryAllocate(ctx, mempool.Bytes(1<<20))
	require.NoError(t, err, "after both clients gave up their mappings")
	assert.EqualValues(t, 1<<20, svc.Stats().Pools[0].Leased)
	require.NoError(t, all.Release(false))
}
