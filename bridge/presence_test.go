package bridge

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

// waitsFor waits until a session waits for `what`.
func waitsFor(t testing.TB, c *Client, what string) {
	t.Helper()
	eventually(t, func() bool {
		for s, err := range c.Sessions(t.Context()) {
			require.NoError(t, err)
			if s.WaitsFor == what {
				return true
			}
		}
		return false
	})
}

func TestAProducerThatWaitsForItsConsumersLosesNoFrame(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 2, Full: mempool.DropOldest})
	done := make(chan error, 1)
	go func() { done <- s.from.WaitForConsumers(t.Context(), 2) }()
	waitsFor(t, s.consumer, `consumers of channel "c"`)
	first := s.follow(t, mempool.SubscribeOptions{})
	waitsFor(t, s.consumer, `consumers of channel "c"`)
	select {
	case err := <-done:
		t.Fatal("it waited for one consumer only", err)
	default:
	}
	second := s.follow(t, mempool.SubscribeOptions{})
	require.NoError(t, <-done)
	s.send(t, 1)
	s.send(t, 2)
	for _, from := range []*subscription{first, second} {
		for n := range uint64(2) {
			require.NoError(t, receive(t, from, n+1).Release())
		}
	}
	first.Leave()
	second.Leave()
	eventually(t, func() bool {
		ctx, pass := dueNow(t)
		defer pass()
		return s.from.WaitForConsumers(ctx, 1) != nil
	})
}

func TestAWaitForConsumersEndsWithAnErrorThatSaysWhy(t *testing.T) {
	_, path := serve(t, server.Config{})
	c, other := dial(t, path), dial(t, path)
	ch := makeChannel(t, c, createPool(t, c, hostPool("p", 4096)), mempool.ChannelSpec{})
	for _, n := range []int{-1, 0, 1025} {
		require.ErrorIs(t, ch.WaitForConsumers(t.Context(), n), ErrInvalid)
	}
	ctx, pass := dueNow(t)
	defer pass()
	err := ch.WaitForConsumers(ctx, 3)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, ErrNotFound)
	require.ErrorContains(t, err, `channel "c" has 0 of 3 consumers`)

	cancelled, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	for _, end := range []struct {
		do   func()
		want error
	}{
		{cancel, context.Canceled},
		{func() { require.NoError(t, ch.Close(t.Context())) }, ErrClosed},
	} {
		go func() { done <- ch.WaitForConsumers(cancelled, 1) }()
		waitsFor(t, other, `consumers of channel "c"`)
		end.do()
		require.ErrorIs(t, <-done, end.want)
		cancelled = t.Context()
	}
	assert.ErrorIs(t, ch.WaitForConsumers(t.Context(), 1), ErrClosed)
}
