package bridge

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

// BenchmarkFramesOfClients sends frames of 64 KiB from a publisher to another client. The clients do not read or write the content.
func BenchmarkFramesOfClients(b *testing.B) {
	sendFrames(b, func(_ *Pool, ch *Channel) func() error {
		from := publisher(b, ch, 64<<10)
		return func() error {
			l, err := from.Loan(b.Context())
			if err == nil {
				_, err = from.Publish(b.Context(), l, mempool.FrameOptions{})
			}
			return err
		}
	})
}

// BenchmarkFramesOfLeases is like BenchmarkFramesOfClients, but asks the service for the memory of each frame.
func BenchmarkFramesOfLeases(b *testing.B) {
	sendFrames(b, func(p *Pool, ch *Channel) func() error {
		return func() error {
			l, err := p.Allocate(b.Context(), mempool.Bytes(64<<10))
			if err == nil {
				_, err = ch.Publish(b.Context(), l, mempool.FrameOptions{})
			}
			return err
		}
	})
}

// sendFrames measures a function that sends a frame; the function `sender` makes this function.
func sendFrames(b *testing.B, sender func(*Pool, *Channel) func() error) {
	_, path := serve(b, server.Config{})
	producer, consumer := dial(b, path), dial(b, path)
	p := createPool(b, producer, hostPool("p", 1<<24))
	ch := makeChannel(b, producer, p, mempool.ChannelSpec{Capacity: 64})
	theirs, err := consumer.TryOpenChannel(b.Context(), "c")
	require.NoError(b, err)
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		first := true
		for f, err := range theirs.Frames(context.Background(), mempool.SubscribeOptions{Oldest: true}) {
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
	send := sender(p, ch)
	require.NoError(b, send())
	<-began
	b.ReportAllocs()
	for b.Loop() {
		if err := send(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "frames/s")
	require.NoError(b, ch.Close(b.Context()))
	require.NoError(b, <-ended)
}
