package bridge

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestWhatAClientSaysAboutEventsIsChecked(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	l := allocate(t, p, 10)
	for name, r := range map[string]wire.Request{
		"too short":               &wire.Publish{Lease: l.Grant().ID, Name: "x", Event: make([]byte, mempool.EventBytes-1)},
		"too long":                &wire.Publish{Lease: l.Grant().ID, Name: "x", Event: make([]byte, mempool.EventBytes+1)},
		"without a fence":         &wire.Publish{Lease: l.Grant().ID, Name: "x", Event: make([]byte, mempool.EventBytes)},
		"another session's fence": &wire.Publish{Lease: l.Grant().ID, Name: "x", Event: make([]byte, mempool.EventBytes), Ready: &wire.Fence{Timeline: 99, Value: 1}},
	} {
		assert.ErrorIs(t, c.session.Call(t.Context(), r, &wire.EmptyReply{}), ErrInvalid, name)
	}
	require.NoError(t, l.CopyFrom(t.Context(), 0, []byte{1}), "the lease lives on")
	require.NoError(t, l.Release(false))
}
