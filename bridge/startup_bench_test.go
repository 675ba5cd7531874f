package bridge

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// BenchmarkFirstFrames measures the first 100 frames of a stream, from the first frame to the release of the last one.
func BenchmarkFirstFrames(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		s := newBenchStream(b, mempool.Broadcast)
		theirs, err := dial(b, s.path).TryOpenChannel(b.Context(), "c")
		require.NoError(b, err)
		from, err := theirs.subscribe(b.Context(), mempool.SubscribeOptions{Oldest: true})
		require.NoError(b, err)
		b.StartTimer()
		for range 100 {
			if err := s.send(b.Context()); err != nil {
				b.Fatal(err)
			}
			f, err := from.next(b.Context())
			if err == nil {
				err = receiveNumbered(f, s.sent)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		from.Leave()
		require.NoError(b, s.producer.Close())
		b.StartTimer()
	}
}
