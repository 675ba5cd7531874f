package bridge

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// BenchmarkFrames sends frames from a session in the service's process to a client.
func BenchmarkFrames(b *testing.B) {
	svc, path := serve(b, ServerConfig{})
	s, err := svc.OpenSession(mempool.Peer{}, nil)
	require.NoError(b, err)
	defer func() { <-s.End(nil) }()
	p, err := s.CreatePool(hostPool("p", 1<<24))
	require.NoError(b, err)
	ch, err := s.CreateChannel(mempool.ChannelSpec{Name: "frames", Pool: p.Info().ID, Capacity: 64, ThroughService: true})
	require.NoError(b, err)
	c := dial(b, path)
	theirs, err := c.OpenChannel(b.Context(), "frames", 0)
	require.NoError(b, err)
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		first := true
		for f, err := range theirs.Frames(context.Background(), mempool.SubscribeOptions{Credit: 64, Oldest: true}) {
			if err == nil {
				err = f.Release()
			}
			if err != nil {
				ended <- err
				return
			}
			if first {
				first = false
				close(began)
			}
		}
		ended <- nil
	}()
	send := func() {
		l, err := s.Allocate(b.Context(), p.Info().ID, mempool.Bytes(4096), patience)
		if err == nil {
			_, err = ch.Publish(b.Context(), l, mempool.FrameOptions{})
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	send()
	<-began
	for b.Loop() {
		send()
	}
	require.NoError(b, ch.Shut())
	require.NoError(b, <-ended)
}

// BenchmarkFramesOfClients sends frames of 64 KiB from client to client, which do not touch the content.
func BenchmarkFramesOfClients(b *testing.B) {
	for name, shared := range map[string]bool{"service": false, "shared": true} {
		b.Run(name, func(b *testing.B) { benchmarkFrames(b, shared) })
	}
}

func benchmarkFrames(b *testing.B, shared bool) {
	_, path := serve(b, ServerConfig{})
	producer, consumer := dial(b, path), dial(b, path)
	p := createPool(b, producer, hostPool("p", 1<<24))
	ch := makeChannel(b, producer, p, mempool.ChannelSpec{Capacity: 64, ThroughService: !shared})
	theirs, err := consumer.OpenChannel(b.Context(), "c", 0)
	require.NoError(b, err)
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		first := true
		for f, err := range theirs.Frames(context.Background(), mempool.SubscribeOptions{Credit: 64, Oldest: true}) {
			if err == nil {
				err = f.Release()
			}
			if err != nil {
				ended <- err
				return
			}
			if first {
				first = false
				close(began)
			}
		}
		ended <- nil
	}()
	frame := mempool.Bytes(64 << 10)
	send := func() {
		l, err := p.Allocate(b.Context(), frame, patience)
		if err == nil {
			_, err = ch.Publish(b.Context(), l, mempool.FrameOptions{})
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	send()
	<-began
	b.ReportAllocs()
	for b.Loop() {
		send()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "frames/s")
	require.NoError(b, ch.Shut(b.Context()))
	require.NoError(b, <-ended)
}
