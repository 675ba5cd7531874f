package bridge

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// An allocation that finds no memory asks the service. If the service is stopped at that moment, the allocation takes memory that a consumer
// gives back.
func TestAStreamGoesOnWhileTheServiceIsStoppedAlthoughAnAllocationAsksTheService(t *testing.T) {
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		t.Run(string(mode), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			path := filepath.Join(t.TempDir(), "s.sock")
			service := spawn(t, "service", path, nil)
			require.Equal(t, "serving", service.says())
			producer, consumer := dial(t, path), dial(t, path)
			pool := createPool(t, producer, hostPool("p", 2<<12))
			ch := makeChannel(t, producer, pool, mempool.ChannelSpec{Mode: mode, Capacity: 1, Full: mempool.DropOldest})
			far, err := consumer.OpenChannel(ctx, ch.info.Name)
			require.NoError(t, err)
			reader, err := far.consume(ctx, mempool.SubscribeOptions{})
			require.NoError(t, err)
			var hand []*Frame
			for range 2 { // both blocks are known to the consumer, and in its hands
				l, err := pool.Allocate(ctx, mempool.Bytes(4096))
				require.NoError(t, err)
				_, err = ch.Publish(ctx, l, FrameOptions{})
				require.NoError(t, err)
				f, err := reader.next(ctx)
				require.NoError(t, err)
				hand = append(hand, f)
			}
			service.stop()
			sp := producer.shared.spares(pool.info.ID)
			for range 600 { // the socket's buffer has no room for so many requests
				got := make(chan *Lease)
				go func() {
					l, err := pool.Allocate(ctx, mempool.Bytes(4096))
					assert.NoError(t, err)
					got <- l
				}()
				for sp.awaited.Load() == 0 && len(got) == 0 { // the allocation waits for the service
					select {
					case <-ctx.Done():
						t.Fatal(ctx.Err())
					default:
					}
				}
				require.NoError(t, hand[0].Release())
				l := <-got
				_, err := ch.Publish(ctx, l, FrameOptions{})
				require.NoError(t, err)
				f, err := reader.next(ctx)
				require.NoError(t, err)
				hand = append(hand[1:], f)
			}
			require.NoError(t, service.cmd.Process.Signal(syscall.SIGCONT))
			for _, f := range hand {
				require.NoError(t, f.Release())
			}
			reader.abandon()
			require.NoError(t, ch.Close(ctx))
			all, err := pool.Allocate(ctx, mempool.Bytes(2<<12))
			require.NoError(t, err, "no block is lost")
			require.NoError(t, all.Release(false))
		})
	}
}
