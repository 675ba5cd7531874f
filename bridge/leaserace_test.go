package bridge

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestANoticeOfFailedBuffersMayComeWhileALeaseIsPublished(t *testing.T) { // the race detector finds the error
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 16<<20))
	stop := make(chan struct{})
	var notices sync.WaitGroup
	notices.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				c.session.Blocks.MarkFailed([]uint64{1 << 40})
			}
		}
	})
	for i := range 200 {
		l := allocate(t, p, 64)
		require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: fmt.Sprint(i % 5), Replace: true}))
		require.NoError(t, l.Release(false))
	}
	close(stop)
	notices.Wait()
}

func TestAFrameWhoseLeaseWasReleasedIsSettled(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 16<<20))
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		for _, left := range []bool{false, true} {
			name := fmt.Sprint(mode, ", after its loop: ", left)
			ch := makeChannel(t, c, p, mempool.ChannelSpec{Name: name, Mode: mode, Capacity: 4})
			require.NoError(t, sendFrame(t.Context(), p, ch, 1, 64, mempool.FrameOptions{}))
			var kept *Frame
			for f, err := range ch.Frames(t.Context(), mempool.SubscribeOptions{ManualAck: true}) {
				require.NoError(t, err)
				require.NoError(t, f.Lease.Release(false))
				if kept = f; !left {
					assert.ErrorIs(t, f.Ack(), ErrSettled, name)
				}
				break
			}
			assert.ErrorIs(t, kept.Ack(), ErrSettled, name)
			assert.NoError(t, kept.Release(), name)
		}
	}
}

func TestAClientMayCloseDuringAnAllocation(t *testing.T) { // the race detector finds the error
	_, path := serve(t, server.Config{})
	other := dial(t, path)
	c, err := Dial(t.Context(), path)
	require.NoError(t, err)
	pool := createPool(t, c, hostPool("p", 1<<22))
	go func() { _, _ = pool.TryAllocate(context.Background(), mempool.Bytes(64)) }() // nothing orders its end before Close
	require.Eventually(t, func() bool {
		stats, err := other.Stats(t.Context())
		return err == nil && stats.Leases == 1
	}, time.Minute, time.Millisecond)
	_ = c.Close()
}
