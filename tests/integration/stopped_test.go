package integration

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

func TestPublishGoesOnWhileTheServiceIsStoppedAndItsSocketIsFull(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=64MiB")
	producer, consumer := dial(t, s), dial(t, s)
	p, err := producer.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	ch, err := producer.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "c", Pool: p.Info().ID, Capacity: 2, Full: mempool.DropOldest})
	require.NoError(t, err)
	to, err := consumer.TryOpenChannel(t.Context(), "c")
	require.NoError(t, err)
	const frames = 4000 // their releases do not fit into the socket
	var leases []*bridge.Lease
	for range frames {
		l, err := p.TryAllocate(t.Context(), mempool.Bytes(64))
		require.NoError(t, err)
		leases = append(leases, l)
	}
	publish := func(l *bridge.Lease) {
		_, err := ch.Publish(context.Background(), l, mempool.FrameOptions{})
		assert.NoError(t, err)
	}
	got := make(chan *bridge.Frame)
	subscribed, stop := context.WithCancel(t.Context())
	go func() {
		defer close(got)
		for f, err := range to.Frames(subscribed, mempool.SubscribeOptions{Oldest: true}) {
			if err != nil {
				return
			}
			got <- f
		}
	}()
	publish(leases[0])
	require.NoError(t, (<-got).Release()) // the consumer has mapped the files of the producer

	require.NoError(t, s.Process.Signal(syscall.SIGSTOP))
	defer func() { _ = s.Process.Signal(syscall.SIGCONT) }()
	asking := make(chan error, 1)
	go func() { // asks for memory in the same channel's pool, and so waits for the service
		l, err := p.Allocate(context.Background(), mempool.Bytes(64))
		if err == nil {
			err = l.Release(false)
		}
		asking <- err
	}()
	published := make(chan struct{})
	go func() {
		defer close(published)
		for _, l := range leases[1:] {
			publish(l)
		}
	}()
	select {
	case <-published:
	case <-time.After(time.Minute):
		t.Error("Publish waits for a service that is stopped")
	}
	require.NoError(t, s.Process.Signal(syscall.SIGCONT))
	<-published
	require.NoError(t, <-asking)
	stop()
	for f := range got {
		require.NoError(t, f.Release())
	}
	s.StatsWhen(t, func(st mempool.ServiceStats) bool { return st.Leases == 2 }) // of the frames in the channel
}
