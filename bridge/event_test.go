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
		"too short":               &wire.Publish{Lease: l.info.ID, Name: "x", Event: make([]byte, mempool.EventBytes-1)},
		"too long":                &wire.Publish{Lease: l.info.ID, Name: "x", Event: make([]byte, mempool.EventBytes+1)},
		"alone, without a GPU":    &wire.Publish{Lease: l.info.ID, Name: "x", Event: make([]byte, mempool.EventBytes)},
		"another session's fence": &wire.Publish{Lease: l.info.ID, Name: "x", Event: make([]byte, mempool.EventBytes), Ready: &wire.Fence{Timeline: 99, Value: 1}},
	} {
		assert.ErrorIs(t, c.call(t.Context(), r, &call{into: &wire.EmptyReply{}}), ErrInvalid, name)
	}
	require.NoError(t, l.CopyFrom(t.Context(), 0, []byte{1}), "the lease lives on")
	require.NoError(t, l.Release(false))
}

func TestAReaderIsToldOfAnEventThatStandsAlone(t *testing.T) {
	if err := mempool.Device.Probe(""); err != nil {
		t.Skip(err)
	}
	_, path := serve(t, server.Config{})
	producer, consumer := dial(t, path), dial(t, path)
	p := createPool(t, producer, mempool.PoolSpec{Name: "gpu", Kind: mempool.Device, MaxBytes: 1 << 20})
	l := allocate(t, p, 10)
	event := make([]byte, mempool.EventBytes)
	err := producer.call(t.Context(), &wire.Publish{Lease: l.info.ID, Name: "x", Event: event}, &call{into: &wire.EmptyReply{}})
	require.NoError(t, err)
	l.info.Write = false // as Publish does
	got, err := consumer.TryGet(t.Context(), "x", LeaseOptions{})
	require.NoError(t, err)
	assert.True(t, got.Info().EventOnly)
	assert.Equal(t, event, got.Info().Event)
	_, err = got.ReadyEvent()
	assert.ErrorIs(t, err, ErrUnavailable, "these are no event's bytes")
	assert.ErrorIs(t, got.CopyTo(t.Context(), make([]byte, 1), 0), ErrUnavailable)
	require.NoError(t, got.Release(false), "and the session goes on")
	require.NoError(t, l.Release(false))
	_, err = producer.Stats(t.Context()) // when the reply comes, the service has handled the release
	require.NoError(t, err)
	again, err := consumer.TryGet(t.Context(), "x", LeaseOptions{})
	require.NoError(t, err)
	assert.False(t, again.Info().EventOnly, "its publisher has said that it is done")
	assert.Empty(t, again.Info().Event)
	require.NoError(t, again.Release(false))
}
