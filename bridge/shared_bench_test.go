package bridge

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

func init() { children["drain"] = drainFrames }

const (
	benchFrame    = 64 << 10
	benchCapacity = 64
)

// benchStream is a channel with frames of 64 KiB. The first 8 bytes of a frame contain the frame's number.
type benchStream struct {
	path     string
	producer *Client
	pool     *Pool
	channel  *Channel
	from     *Publisher
	sent     uint64
}

func newBenchStream(b *testing.B, mode mempool.ChannelMode) *benchStream {
	_, path := serve(b, server.Config{})
	s := &benchStream{path: path, producer: dial(b, path)}
	s.pool = createPool(b, s.producer, hostPool("p", benchFrame*(benchCapacity+32)))
	s.channel = makeChannel(b, s.producer, s.pool, mempool.ChannelSpec{Mode: mode, Capacity: benchCapacity})
	s.from = publisher(b, s.channel, benchFrame)
	return s
}

func (s *benchStream) send(ctx context.Context) error {
	l, err := s.from.Loan(ctx)
	if err != nil {
		return err
	}
	mem, err := l.Bytes(context.Background())
	if err != nil {
		return err
	}
	s.sent++
	binary.LittleEndian.PutUint64(mem, s.sent)
	_, err = s.from.Publish(ctx, l, mempool.FrameOptions{})
	return err
}

// receiveNumbered checks the number of a frame and releases the frame.
func receiveNumbered(f *Frame, number uint64) error {
	mem, err := f.Lease.Bytes(context.Background())
	if err != nil {
		return err
	}
	if got := binary.LittleEndian.Uint64(mem); got != number {
		return fmt.Errorf("frame %d has the number %d", number, got)
	}
	return f.Release()
}

// BenchmarkSharedWork measures publishing and receiving in one goroutine, so no call waits.
func BenchmarkSharedWork(b *testing.B) {
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		b.Run(string(mode), func(b *testing.B) {
			s := newBenchStream(b, mode)
			theirs, err := dial(b, s.path).TryOpenChannel(b.Context(), "c")
			require.NoError(b, err)
			from, err := theirs.subscribe(b.Context(), mempool.SubscribeOptions{Oldest: true})
			require.NoError(b, err)
			defer from.Leave()
			b.ReportAllocs()
			for b.Loop() {
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
		})
	}
}

// drainFrames takes the frames of the channel "c" until it is closed.
func drainFrames() error {
	ctx := context.Background()
	c, err := Dial(ctx, os.Getenv("POOLBRIDGE_SOCKET"))
	if err != nil {
		return err
	}
	ch, err := c.OpenChannel(ctx, "c")
	if err != nil {
		return err
	}
	number := uint64(0)
	for f, err := range ch.Frames(ctx, mempool.SubscribeOptions{Oldest: true}) {
		if err != nil {
			return err
		}
		if number++; number == 1 {
			fmt.Println("ready")
		}
		if err := receiveNumbered(f, number); err != nil {
			return err
		}
	}
	return c.Close()
}

// BenchmarkSharedProcesses runs each consumer in another process.
func BenchmarkSharedProcesses(b *testing.B) {
	for _, consumers := range []int{1, 8} {
		b.Run(fmt.Sprint(consumers), func(b *testing.B) {
			s := newBenchStream(b, mempool.Broadcast)
			require.NoError(b, s.send(b.Context()))
			var all []*child
			for range consumers {
				all = append(all, spawn(b, "drain", s.path, nil))
			}
			for _, c := range all {
				require.Equal(b, "ready", c.says())
			}
			before := processors(b)
			b.ResetTimer()
			for range b.N {
				if err := s.send(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, s.channel.Close(b.Context()))
			for _, c := range all {
				require.NoError(b, c.cmd.Wait())
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "frames/s")
			b.ReportMetric(float64(processors(b)-before)/float64(b.N), "cpu-ns/frame")
		})
	}
}

// processors returns the CPU time that this process and its ended children have used.
func processors(b *testing.B) (total time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		require.NoError(b, unix.Getrusage(who, &u))
		total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return total
}
