package bridge

import (
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestManyClientsEnsureTheSamePool(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	const many = 8
	found := make(chan uint64, many)
	var all sync.WaitGroup
	for range many {
		c := dial(t, r.path)
		all.Go(func() {
			p, err := c.EnsurePool(t.Context(), hostPool("p", 4096))
			if assert.NoError(t, err) {
				found <- p.Info().ID
			}
		})
	}
	all.Wait()
	for range many {
		assert.EqualValues(t, 1, <-found)
	}
	_, err := dial(t, r.path).EnsurePool(t.Context(), hostPool("p", 8192))
	require.ErrorIs(t, err, ErrExists)
	assert.ErrorContains(t, err, "its max_bytes is 4096, not 8192")
	_, err = dial(t, r.path).EnsurePool(t.Context(), mempool.PoolSpec{})
	assert.ErrorIs(t, err, ErrInvalid)
}

func TestAPoolThatCannotBeOpenedHereIsDestroyedOnlyIfItWasMadeForThat(t *testing.T) {
	s := imitate(t)
	c := s.dial(t)
	memfd, err := os.CreateTemp(t.TempDir(), "no memfd")
	require.NoError(t, err)
	defer memfd.Close()
	useless := &wire.PoolReply{Pool: wire.PoolInfo{ID: 9, Name: "p", Kind: "host", MaxBytes: 4096, Export: &wire.Export{FDs: 1}}}
	failed := make(chan error)

	go func() { _, err := c.EnsurePool(t.Context(), hostPool("p", 4096)); failed <- err }()
	q, m := s.request(t)
	require.True(t, m.(*wire.Create).Ensure)
	s.reply(t, q, useless, int(memfd.Fd()))
	require.ErrorIs(t, <-failed, ErrInvalid)

	go func() { _, err := c.CreatePool(t.Context(), hostPool("p", 4096)); failed <- err }()
	q, m = s.request(t)
	require.False(t, m.(*wire.Create).Ensure, "nothing was destroyed before")
	s.reply(t, q, useless, int(memfd.Fd()))
	q, m = s.request(t)
	require.Equal(t, &wire.Destroy{Pool: 9}, m)
	s.reply(t, q, &wire.EmptyReply{})
	require.ErrorIs(t, <-failed, ErrInvalid)
}
