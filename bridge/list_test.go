package bridge

import (
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

func collect[T any](t *testing.T, entries iter.Seq2[T, error]) (all []T) {
	t.Helper()
	for e, err := range entries {
		require.NoError(t, err)
		all = append(all, e)
	}
	return all
}

func TestAClientListsWhatTheServiceHas(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	const names = 2*wire.MaxList + 3
	for i := range names {
		l := allocate(t, p, 8)
		require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: fmt.Sprintf("%04d", i), Keep: i == 0}))
		require.NoError(t, l.Release(false))
	}
	held := allocate(t, p, 24)
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Capacity: 3})

	found := collect(t, c.Names(t.Context()))
	require.Len(t, found, names)
	for i, n := range found {
		assert.Equal(t, fmt.Sprintf("%04d", i), n.Name)
		assert.Equal(t, p.Info().ID, n.Pool)
		assert.EqualValues(t, 8, n.Bytes)
	}
	assert.Zero(t, found[0].Session, "it is kept")
	assert.Equal(t, c.Session(), found[1].Session)
	buffers := collect(t, c.Buffers(t.Context()))
	require.Len(t, buffers, names+1)
	last := buffers[names]
	assert.Equal(t, held.Grant().Buffer, last.ID)
	assert.Equal(t, c.Session(), last.Writer)
	assert.Equal(t, []uint64{24}, last.Tensor.Shape)
	assert.Equal(t, []mempool.ChannelInfo{{ChannelIdentity: ch.Identity(), UID: mempool.Self().UID}}, collect(t, c.Channels(t.Context())))
	sessions := collect(t, c.Sessions(t.Context()))
	require.Len(t, sessions, 1)
	assert.Equal(t, c.Session(), sessions[0].ID)
	assert.Equal(t, mempool.Self().PID, sessions[0].PID)
	assert.NotEmpty(t, sessions[0].Program)
	assert.Equal(t, 1, sessions[0].Leases)
	for range c.Names(t.Context()) { // a caller may leave the loop early
		break
	}
}

func TestAPageOfTheLongestEntriesFitsIntoAPacket(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<24))
	long := mempool.Tensor{DType: "complex128"}
	for range 32 {
		long.Shape, long.Strides = append(long.Shape, 1), append(long.Strides, -1<<62)
	}
	for i := range wire.MaxList {
		l, err := p.Allocate(t.Context(), mempool.Bytes(16))
		require.NoError(t, err)
		name := fmt.Sprintf("%0255d", i)
		require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: name, Tensor: &long}))
		r := dialRaw(t, path)
		r.Ask(1, &wire.Hello{Versions: []uint64{1}, Name: strings.Repeat("é", wire.MaxString/2)}, &wire.HelloReply{})
	}
	require.Len(t, collect(t, c.Names(t.Context())), wire.MaxList)
	require.Len(t, collect(t, c.Buffers(t.Context())), wire.MaxList)
	sessions := collect(t, c.Sessions(t.Context()))
	require.Len(t, sessions, wire.MaxList+1)
	assert.Equal(t, strings.Repeat("é", 127), sessions[1].Program)
}

func TestWhatCannotBeListedIsRefused(t *testing.T) {
	_, path := serve(t, server.Config{})
	r := greeted(t, path)
	r.Refused(2, &wire.List{What: "secrets"}, wire.CodeInvalid)
	r.Refused(3, &wire.List{What: "buffers", After: "-1"}, wire.CodeInvalid)
	var page wire.ListReply
	r.Ask(4, &wire.List{What: "sessions", Most: 1 << 40}, &page)
	assert.Len(t, page.Sessions, 1)
	assert.Empty(t, page.Next)
}
