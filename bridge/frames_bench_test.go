package bridge

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

// BenchmarkFramesOfClients sends frames of 64 KiB from one client to another. The clients do not read or write the content.
func BenchmarkFramesOfClients(b *testing.B) {
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
	from := publisher(b, ch, 64<<10)
	send := func() {
		l, err := from.Loan(b.Context())
		if err == nil {
			_, err = from.Publish(b.Context(), l, mempool.FrameOptions{})
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
	require.NoError(b, ch.Close(b.Context()))
	require.NoError(b, <-ended)
}
