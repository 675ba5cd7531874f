package bridge

import (
	"context"
	"fmt"
	"testing"
	"time"

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

func TestAConsumerWithoutProducersWaitsEndsOrFailsAsItAsked(t *testing.T) {
	for _, mode := range []mempool.ChannelMode{Broadcast, WorkQueue} {
		s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Mode: mode, Capacity: 8})
		producer := spawn(t, "produce", s.path, nil)
		require.Equal(t, "ready", producer.says())
		var following []*subscription
		for _, policy := range []NoProducersPolicy{WaitForProducers, EndWithoutProducers, FailWithoutProducers} {
			following = append(following, s.follow(t, mempool.SubscribeOptions{NoProducers: policy, Oldest: true}))
		}
		for n := range 3 {
			producer.tell(fmt.Sprintf("send %d 1000", n+1))
			producer.says()
		}
		for n := range uint64(3) {
			for i, from := range following {
				if mode == Broadcast || i == int(n) {
					require.NoError(t, receive(t, from, n+1).Release())
				}
			}
		}
		taken := make(chan error, 1)
		go func() {
			_, err := following[2].next(t.Context())
			taken <- err
		}()
		producer.kill()
		err := <-taken
		require.ErrorIs(t, err, ErrNoProducers)
		require.ErrorIs(t, err, ErrClosed)
		require.Regexp(t, fmt.Sprintf(`channel "c" is not closed, and no producer is left since [\d:]+ UTC: pid %d was killed, or ended without closing its client$`,
			producer.cmd.Process.Pid), err.Error())
		f, err := following[1].next(t.Context())
		require.NoError(t, err)
		require.Nil(t, f)
		late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err = following[0].next(late)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Regexp(t, `channel "c": no frame came since \d\d:\d\d:\d\d UTC; no producer is left since`, err.Error())
		following[1].Leave()
		following[2].Leave()
		lost := ChannelProducer{PID: uint32(producer.cmd.Process.Pid), Ending: mempool.SessionLost}
		require.Equal(t, []ChannelProducer{lost}, (&Subscription{of: following[2]}).Producers())
		s.send(t, 4)
		require.NoError(t, receive(t, following[0], 4).Release())
		following[0].Leave()
	}
}

func TestAnUnknownPolicyOfASubscriberIsRefused(t *testing.T) {
	s := pair(t, hostPool("p", 4096), mempool.ChannelSpec{})
	for _, err := range s.to.Frames(t.Context(), SubscribeOptions{NoProducers: "closed"}) {
		require.ErrorIs(t, err, ErrInvalid)
	}
}
