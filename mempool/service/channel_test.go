package service

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestChannelsAreForWhoMayUseThePool(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 4)
	stranger, err := r.svc.OpenSession(mempool.Peer{UID: 4711}, "", func(Notice) {})
	require.NoError(t, err)
	_, err = stranger.FindChannel(t.Context(), "frames", 0)
	assert.ErrorIs(t, err, mempool.ErrNotFound)
	_, err = stranger.Channel(r.info.ID).Join(MemberSpec{Role: Consumer})
	assert.ErrorIs(t, err, mempool.ErrClosed)
	_, err = stranger.MakeChannel(mempool.ChannelSpec{Name: "mine", Pool: r.pool.rec.Info.ID, Capacity: 1})
	assert.ErrorIs(t, err, mempool.ErrNotFound)
	assert.ErrorIs(t, stranger.Channel(r.info.ID).Close(), mempool.ErrClosed)
}

func TestChannelsAreFoundByName(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 4)
	ctx, s, pool := t.Context(), hire(t, r.svc), r.pool.rec.Info.ID
	same, err := s.MakeChannel(mempool.ChannelSpec{Name: "frames", Pool: pool, Mode: mempool.Broadcast, Capacity: 2, Full: mempool.Block})
	require.NoError(t, err)
	assert.Equal(t, r.info, same)
	_, err = s.MakeChannel(mempool.ChannelSpec{Name: "frames", Pool: pool, Capacity: 3})
	assert.ErrorIs(t, err, mempool.ErrExists)
	assert.ErrorContains(t, err, `there is a channel "frames" already, which differs from what was asked for: its capacity is 2, not 3; open it as it is (OpenChannel in Go and open_channel in Python), or close it first: poolsvc channel close frames`)
	found, err := s.FindChannel(ctx, "frames", 0)
	require.NoError(t, err)
	assert.Equal(t, r.info, found)
	_, err = s.FindChannel(ctx, "other", 0)
	assert.ErrorIs(t, err, mempool.ErrNotFound)
	_, err = s.FindChannel(ctx, "other", 1)
	assert.ErrorIs(t, err, mempool.ErrTimeout)
	got := make(chan mempool.ChannelIdentity)
	go func() {
		info, err := s.FindChannel(ctx, "other", patience)
		assert.NoError(t, err)
		got <- info
	}()
	made, err := r.owner.MakeChannel(mempool.ChannelSpec{Name: "other", Pool: pool, Capacity: 1})
	require.NoError(t, err)
	assert.Equal(t, made, <-got)
	for _, spec := range []mempool.ChannelSpec{
		{Name: "", Capacity: 1}, {Name: "x"}, {Name: "x", Capacity: -1}, {Name: "x", Capacity: mempool.MaxCapacity + 1},
		{Name: "x", Capacity: 1, Mode: "multicast"}, {Name: "x", Capacity: 1, Full: "panic"}, {Name: "\n", Capacity: 1},
	} {
		spec.Pool = pool
		_, err := r.owner.MakeChannel(spec)
		assert.ErrorIs(t, err, mempool.ErrInvalid, "%+v", spec)
	}
	_, err = r.owner.MakeChannel(mempool.ChannelSpec{Name: "x", Pool: 99, Capacity: 1})
	assert.ErrorIs(t, err, mempool.ErrNotFound)
}

func TestTheChannelsOfAPoolAreBounded(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 4)
	for i := range mempool.MaxChannels - 1 {
		_, err := r.owner.MakeChannel(mempool.ChannelSpec{Name: fmt.Sprint("channel ", i), Pool: r.pool.rec.Info.ID, Capacity: 1})
		require.NoError(t, err)
	}
	_, err := r.owner.MakeChannel(mempool.ChannelSpec{Name: "more", Pool: r.pool.rec.Info.ID, Capacity: 1})
	assert.ErrorIs(t, err, mempool.ErrLimit)
	require.NoError(t, r.owner.DestroyPool(r.pool.rec.Info.ID))
	assert.True(t, r.nothingLeft())
}

func TestAPoolThatIsDestroyedTakesNoOtherChannelsName(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 4)
	slow := r.consume(hire(t, r.svc), MemberSpec{})
	require.NoError(t, r.owner.Channel(r.info.ID).Close())
	require.False(t, r.nothingLeft(), "it lives until its consumer leaves")
	other := createPool(t, r.owner, mempool.PoolSpec{Name: "other", Kind: fake, MaxBytes: 1 << 20})
	again, err := r.owner.MakeChannel(mempool.ChannelSpec{Name: "frames", Pool: other.rec.Info.ID, Capacity: 2})
	require.NoError(t, err)
	require.NoError(t, r.owner.DestroyPool(r.pool.rec.Info.ID))
	found, err := r.owner.FindChannel(t.Context(), "frames", 0)
	require.NoError(t, err)
	assert.Equal(t, again, found)
	slow.quit()
}
