package bridge

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestAKilledProducersUnfinishedFramesAreTombstones(t *testing.T) {
	kinds(t, func(t *testing.T, spec mempool.PoolSpec) {
		svc, path := serve(t, server.Config{})
		c := dial(t, path)
		p := createPool(t, c, spec)
		ctx := context.Background()
		ch := makeChannel(t, c, p, mempool.ChannelSpec{Capacity: 8})
		sub, err := ch.subscribe(ctx, mempool.SubscribeOptions{})
		require.NoError(t, err)
		first := spawn(t, "produce", path, nil)
		require.Equal(t, "ready", first.says())
		for _, line := range []string{"send 1 1000", "promise 2 1000", "send 3 1000", "promise 4 1000", "promise 5 1000"} {
			first.tell(line)
			first.says()
		}
		next := func() (*Frame, error) {
			f, err := sub.next(ctx)
			require.NotNil(t, f)
			return f, err
		}
		var frames []*Frame
		for range 4 {
			f, err := next()
			require.NoError(t, err)
			frames = append(frames, f)
		}
		waiting := make(chan error)
		go func() { waiting <- frames[1].Lease.WaitOn(ctx, mempool.CPU) }()
		first.kill()
		assert.ErrorIs(t, <-waiting, ErrProducerDied, "it is let go")
		for i, want := range []error{nil, ErrProducerDied, nil, ErrProducerDied} {
			_, err := verify(frames[i])
			assert.ErrorIs(t, err, want)
			require.NoError(t, frames[i].Release())
		}
		f, err := next() // this error comes only when the producer's process is gone
		assert.ErrorIs(t, err, ErrProducerDied)
		assert.Nil(t, f.Lease)
		assert.EqualValues(t, 5, f.Seq)

		second := spawn(t, "produce", path, nil)
		require.Equal(t, "ready", second.says())
		second.tell("send 6 2000")
		require.Equal(t, "sent 6", second.says())
		f, err = next()
		require.NoError(t, err)
		n, err := verify(f)
		require.NoError(t, err)
		assert.EqualValues(t, 6, n)
		require.NoError(t, f.Release())
		sub.Leave()
		require.NoError(t, ch.Close(ctx))
		_, err = c.Stats(ctx)
		require.NoError(t, err)
		awaitReclaimed(t, svc)
	})
}

func TestAKilledConsumerHoldsNobodyBack(t *testing.T) {
	kinds(t, func(t *testing.T, spec mempool.PoolSpec) {
		_, path := serve(t, server.Config{})
		c := dial(t, path)
		p := createPool(t, c, spec)
		ctx := context.Background()
		ch := makeChannel(t, c, p, mempool.ChannelSpec{Capacity: 2})
		require.NoError(t, sendFrame(ctx, p, ch, 1, 1000, mempool.FrameOptions{}))
		victim := spawn(t, "consume", path, with("HOLD=1"))
		require.Equal(t, "ready", victim.says())
		require.Equal(t, "got 1 1 0", victim.says())
		require.NoError(t, sendFrame(ctx, p, ch, 2, 1000, mempool.FrameOptions{}))
		l := allocate(t, p, 8)
		_, err := ch.TryPublish(ctx, l, mempool.FrameOptions{})
		require.ErrorIs(t, err, ErrLimit)
		assert.ErrorContains(t, err, fmt.Sprintf("(pid %d)", victim.cmd.Process.Pid))
		sent := make(chan error)
		go func() {
			_, err := ch.Publish(ctx, l, mempool.FrameOptions{})
			sent <- err
		}()
		victim.kill()
		require.NoError(t, <-sent)
		require.NoError(t, ch.Close(ctx))
		all, err := p.Allocate(ctx, mempool.Bytes(spec.MaxBytes))
		require.NoError(t, err, "all of its memory serves others")
		require.NoError(t, all.Release(false))
	})
}

func TestAKilledWorkersFramesGoToAnother(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	path := r.path
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	ctx := context.Background()
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 8})
	for n := range uint64(4) {
		require.NoError(t, sendFrame(ctx, p, ch, n, 100, mempool.FrameOptions{}))
	}
	victim := spawn(t, "consume", path, with("HOLD=1"))
	require.Equal(t, "ready", victim.says())
	require.Equal(t, "got 0 1 0", victim.says())
	victim.tell("")
	require.Equal(t, "got 1 2 0", victim.says())
	victim.kill()
	r.log.Await(t, "what a session held is reclaimed") // when the process is gone, its frames go back to the queue
	assert.Equal(t, []uint64{1, 2, 3}, take(t, ch, mempool.SubscribeOptions{}, 3), "in their order")
	require.NoError(t, ch.Close(ctx))
}

func TestAStoppedConsumerThatMayMissFramesCostsNothing(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	ctx := context.Background()
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Capacity: 4, Full: mempool.DropOldest})
	require.NoError(t, sendFrame(ctx, p, ch, 0, 100, mempool.FrameOptions{}))
	stopped := spawn(t, "consume", path, nil)
	require.Equal(t, "ready", stopped.says())
	require.Equal(t, "got 0 1 0", stopped.says())
	stopped.stop()
	other := dial(t, path)
	mine, err := other.TryOpenChannel(ctx, "c")
	require.NoError(t, err)
	const frames = 500
	sub, err := mine.subscribe(ctx, mempool.SubscribeOptions{Full: mempool.Block})
	require.NoError(t, err)
	done := make(chan error)
	go func() {
		for n := range uint64(frames) {
			if err := sendFrame(ctx, p, ch, n+1, 100, mempool.FrameOptions{}); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for want := range uint64(frames + 1) {
		f, err := sub.next(ctx)
		require.NoError(t, err)
		got, err := verify(f)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.NoError(t, f.Release())
	}
	require.NoError(t, <-done)
	sub.Leave()
	require.NoError(t, stopped.cmd.Process.Signal(syscall.SIGCONT))
	require.NoError(t, ch.Close(ctx))
	missed, last := 0, 0
	for line := stopped.says(); line != "ended"; line = stopped.says() {
		var n, seq, dropped int
		_, err := fmt.Sscanf(line, "got %d %d %d", &n, &seq, &dropped)
		require.NoError(t, err, line)
		assert.Greater(t, n, last)
		last = n
		missed += dropped
	}
	assert.Equal(t, frames, last, "it goes on with what is kept")
	assert.Positive(t, missed)
}

func TestAStoppedConsumerInBlockModeIsNamed(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	ctx := context.Background()
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Capacity: 1})
	stopped := spawn(t, "consume", path, with("HOLD=1"))
	require.Equal(t, "ready", stopped.says())
	require.NoError(t, sendFrame(ctx, p, ch, 1, 100, mempool.FrameOptions{}))
	require.Equal(t, "got 1 1 0", stopped.says())
	stopped.stop()
	l := allocate(t, p, 100)
	eventually(t, func() bool { // the service tells the producer of a consumer after the consumer has joined
		_, err := ch.TryPublish(ctx, l, mempool.FrameOptions{})
		require.ErrorIs(t, err, ErrLimit)
		return strings.Contains(err.Error(), fmt.Sprintf("(pid %d)", stopped.cmd.Process.Pid))
	})
	require.NoError(t, ch.Close(ctx))
}

func TestAFrameWithWhichEveryWorkerFailsIsDroppedWithAnEvent(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	c := dial(t, r.path)
	p := createPool(t, c, hostPool("p", 1<<20))
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Mode: mempool.WorkQueue, MaxDeliveries: 3})
	assert.Equal(t, 3, ch.Identity().MaxDeliveries)
	for n := range uint64(2) {
		require.NoError(t, sendFrame(t.Context(), p, ch, n, 100, mempool.FrameOptions{}))
	}
	victim := spawn(t, "consume", r.path, with("HOLD=1"))
	require.Equal(t, "ready", victim.says())
	require.Equal(t, "got 0 1 0", victim.says())
	victim.kill()
	r.log.Await(t, "what a session held is reclaimed")
	var deliveries []uint64
	for f, err := range ch.Frames(t.Context(), mempool.SubscribeOptions{ManualAck: true}) {
		require.NoError(t, err)
		deliveries = append(deliveries, f.Delivery)
		if f.Seq == 2 {
			require.NoError(t, f.Release())
			break
		}
		require.NoError(t, f.Requeue())
		require.NoError(t, f.Release())
	}
	assert.Equal(t, []uint64{2, 3, 1}, deliveries, "the killed worker had frame 1 once, and frame 2 comes after it was dropped")
	e := awaitEvent(t, c, func(e mempool.HistoryEvent) bool { return e.Kind == mempool.FrameUndeliverable })
	assert.Equal(t, "c", e.Channel)
	assert.Contains(t, e.Text, "dropped frame 1 of queue \"c\": consumers got it 3 times")
	for info, err := range c.Channels(t.Context()) {
		require.NoError(t, err)
		assert.Equal(t, 3, info.MaxDeliveries)
		assert.Zero(t, info.Waiting)
		assert.EqualValues(t, 1, info.Dropped)
	}
}

func TestABoundOfDeliveriesIsForQueues(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 4096))
	for name, spec := range map[string]mempool.ChannelSpec{
		"a broadcast":  {MaxDeliveries: 1},
		"negative":     {Mode: mempool.WorkQueue, MaxDeliveries: -1},
		"out of range": {Mode: mempool.WorkQueue, MaxDeliveries: mempool.MaxDelivery + 1},
	} {
		spec.Name, spec.Pool = "c", p.Info().ID
		_, err := c.CreateChannel(t.Context(), spec)
		require.ErrorIs(t, err, ErrInvalid, name)
	}
	makeChannel(t, c, p, mempool.ChannelSpec{Mode: mempool.WorkQueue, MaxDeliveries: 2})
	_, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "c", Pool: p.Info().ID, Mode: mempool.WorkQueue})
	require.ErrorIs(t, err, ErrExists)
	assert.ErrorContains(t, err, "its max_deliveries is 2, not 0")
}
