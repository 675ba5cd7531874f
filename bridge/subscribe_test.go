package bridge

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// earlyPair is a producer with the pool "p" of 16 pages, and a client that waits for a channel of it.
func earlyPair(t *testing.T) (producer, consumer *Client, pool *Pool) {
	t.Helper()
	_, path := serve(t, server.Config{})
	producer, consumer = dial(t, path), dial(t, path)
	return producer, consumer, createPool(t, producer, hostPool("p", 16<<12))
}

// sendAll publishes more frames than the channel keeps, and closes the channel.
func sendAll(t *testing.T, ch *Channel, pool *Pool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 3 * ch.Identity().Capacity {
		l, err := pool.Allocate(ctx, mempool.Bytes(4096))
		require.NoError(t, err)
		_, err = ch.Publish(ctx, l, FrameOptions{})
		require.NoError(t, err)
	}
	require.NoError(t, ch.Close(ctx))
}

func TestASubscriberGetsTheFramesOfEachChannelThatItWaitsFor(t *testing.T) {
	producer, consumer, pool := earlyPair(t)
	for range 2 { // channels of one name, one after the other
		counted := make(chan uint64, 1)
		go func() {
			defer close(counted)
			sub, err := consumer.Subscribe(t.Context(), "c", SubscribeOptions{})
			if !assert.NoError(t, err) {
				return
			}
			next := uint64(1)
			for f, err := range sub.Frames(t.Context()) {
				if !assert.NoError(t, err) || !assert.Equal(t, next, f.Seq) || !assert.NoError(t, f.Release()) {
					return
				}
				next++
			}
			counted <- next - 1
		}()
		waitsFor(t, producer, `channel "c"`)
		sendAll(t, makeChannel(t, producer, pool, ChannelSpec{Capacity: 2}), pool)
		require.EqualValues(t, 6, <-counted)
	}
}

func TestASubscriberIsThereBeforeItAsksForFrames(t *testing.T) {
	producer, consumer, pool := earlyPair(t)
	subscribed := make(chan *Subscription, 1)
	go func() {
		sub, err := consumer.Subscribe(t.Context(), "c", SubscribeOptions{})
		assert.NoError(t, err)
		subscribed <- sub
	}()
	waitsFor(t, producer, `channel "c"`)
	ch := makeChannel(t, producer, pool, ChannelSpec{Capacity: 2})
	sub := <-subscribed
	require.NoError(t, ch.WaitForConsumers(t.Context(), 1))
	require.Equal(t, ch.Identity(), sub.Channel().Identity())
	sub.Close()
	sub.Close()
	sendAll(t, ch, pool)
}

func TestATryToPublishDoesNotWaitForASubscriberThatHasNotEntered(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	producer, consumer := dial(t, r.path), sharing(t, r.path)
	pool := createPool(t, producer, hostPool("p", 16<<12))
	consumer.Send(90, &wire.Join{Name: "c", Role: "consumer", Wait: 3_600_000})
	waitsFor(t, producer, `channel "c"`)
	ch := makeChannel(t, producer, pool, ChannelSpec{Capacity: 2})
	loans, err := ch.Publisher(t.Context(), mempool.Bytes(10))
	require.NoError(t, err)
	loan, err := loans.Loan(t.Context())
	require.NoError(t, err)
	l := allocate(t, pool, 10)
	late, pass := dueNow(t)
	for what, publish := range map[string]func() (uint64, error){
		"TryPublish":                func() (uint64, error) { return ch.TryPublish(t.Context(), l, FrameOptions{}) },
		"TryPublish of a publisher": func() (uint64, error) { return loans.TryPublish(t.Context(), loan, FrameOptions{}) },
		"Publish": func() (uint64, error) {
			pass()
			return ch.Publish(late, l, FrameOptions{})
		},
	} {
		_, err := publish()
		require.ErrorIs(t, err, ErrLimit, what)
		require.ErrorContains(t, err, `channel "c": consumer 1 takes part, and has not entered the channel`, what)
	}
	var joined wire.JoinReply
	require.NoError(t, consumer.Reply(90, &joined))
	consumer.get(&wire.Leave{Channel: ch.Identity().ID, Member: joined.Member}, &wire.EmptyReply{})
	_, err = loans.TryPublish(t.Context(), loan, FrameOptions{})
	require.NoError(t, err)
	_, err = ch.TryPublish(t.Context(), l, FrameOptions{})
	require.NoError(t, err)
}

// The service gives the subscriber its place in the channel while the subscriber gives up.
func TestASubscriberThatIsCancelledWhenItsChannelAppearsHoldsUpNobody(t *testing.T) {
	producer, consumer, pool := earlyPair(t)
	for round := range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan *Subscription, 1)
		go func() {
			sub, err := consumer.Subscribe(ctx, "c", SubscribeOptions{})
			if err != nil {
				assert.ErrorIs(t, err, context.Canceled)
			}
			ended <- sub
		}()
		waitsFor(t, producer, `channel "c"`)
		if round%2 == 0 {
			go cancel()
		}
		ch := makeChannel(t, producer, pool, ChannelSpec{Capacity: 2})
		cancel()
		if sub := <-ended; sub != nil {
			sub.Close()
		}
		sendAll(t, ch, pool)
	}
}
