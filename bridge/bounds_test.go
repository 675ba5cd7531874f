package bridge

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestThePoolOfOthersIsDestroyedByItsMaker(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, other := dial(t, path), dial(t, path)
	spec := hostPool("p", 4096)
	spec.Access.UIDs = []uint32{uint32(os.Getuid()) + 1}
	ctx := t.Context()
	for range 2 { // the second time, the name of the destroyed pool is free again
		createPool(t, c, spec)
		_, err := other.TryOpenPool(ctx, "p")
		require.ErrorIs(t, err, ErrDenied)
		require.NoError(t, other.DestroyPool(ctx, "p"))
		require.ErrorIs(t, other.DestroyPool(ctx, "p"), ErrNotFound)
	}
}

func TestAProcessCannotHoldMoreByConnectingAgain(t *testing.T) {
	l := unhurried
	l.Recall = time.Millisecond
	r := start(t, server.Config{}, l)
	spec := hostPool("p", 1<<20)
	spec.SessionBytes, spec.UserBytes = 64<<10, 256<<10
	p := createPool(t, dial(t, r.path), spec)
	alloc := &wire.Alloc{Pool: p.Info().ID, Tensor: wire.Tensor{DType: "uint8", Shape: []uint64{64 << 10}}}

	greedy := greeted(t, r.path)
	greedy.Ask(2, &wire.Open{Name: "p"}, &wire.PoolReply{})
	greedy.Ask(3, alloc, &wire.GrantReply{})
	require.NoError(t, greedy.Conn.Close())
	r.log.Await(t, "kind=session-ended")
	again := greeted(t, r.path)
	again.Refused(2, alloc, wire.CodeLimit)
	var st wire.StatsReply
	again.Ask(3, &wire.StatsRequest{}, &st)
	assert.Zero(t, st.Stats.Leases)
	assert.Equal(t, wire.PoolStats{Pool: st.Stats.Pools[0].Pool, Reserved: 64 << 10, Held: 64 << 10, Blocks: 1, Session: 64 << 10, User: 64 << 10},
		st.Stats.Pools[0])
	assert.EqualValues(t, 256<<10, st.Stats.Pools[0].Pool.UserBytes)
}

// In this test the server's limit Recall is an hour. So the test hangs if TryAllocate waits for the memory of the lease `held`, which has
// not ended.
func TestAnAllocationWaitsOnlyForBlocksThatAreOnTheirWayBack(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	one, other := dial(t, r.path), dial(t, r.path)
	pool := createPool(t, one, hostPool("p", 1<<20))
	theirs, err := other.OpenPool(t.Context(), "p")
	require.NoError(t, err)
	held := allocate(t, theirs, 600<<10)
	unused := allocate(t, pool, 200<<10)
	_, err = unused.Bytes(t.Context()) // maps the block, so that the service must recall it
	require.NoError(t, err)
	release(t, unused)
	_, err = pool.TryAllocate(t.Context(), mempool.Bytes(700<<10))
	require.ErrorIs(t, err, ErrLimit)
	release(t, held)
	_, err = other.Stats(t.Context()) // when the reply comes, the service has handled the release
	require.NoError(t, err)
	release(t, allocate(t, pool, 700<<10))
}
