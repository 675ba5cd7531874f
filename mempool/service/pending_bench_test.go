package service

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// BenchmarkOtherRequestsWhileBlocksArePending runs 8 goroutines that allocate and release blocks. The pool is full of free blocks, and the
// work on these blocks never ends. The benchmark measures how long the request of another session waits. If there are few blocks, the
// request waits mostly because the 8 goroutines use the CPUs.
func BenchmarkOtherRequestsWhileBlocksArePending(b *testing.B) {
	for _, blocks := range []int{100, 100_000} {
		b.Run(strconv.Itoa(blocks), func(b *testing.B) { requestsBesidePending(b, blocks) })
	}
}

func requestsBesidePending(b *testing.B, blocks int) {
	const loops = 8
	svc := newService(b)
	owner := open(b, svc)
	p, _ := fakePool(b, owner, uint64(blocks)*512)
	w := hire(b, svc)
	leases := make([]Lease, blocks)
	for i := range leases {
		leases[i] = allocate(b, w.Session, p, 512)
	}
	unreached := w.fence()
	for _, l := range leases {
		require.NoError(b, l.ReleaseAt(false, []mempool.Fence{unreached}))
	}
	var all sync.WaitGroup
	stop := make(chan struct{})
	for range loops {
		s := open(b, svc)
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				l, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(512), 0)
				if err != nil {
					b.Error(err)
					return
				}
				if err := l.Release(false); err != nil {
					b.Error(err)
				}
			}
		})
	}
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		_, err := owner.FindPool(p.rec.Info.ID)
		require.NoError(b, err)
		took = append(took, time.Since(began))
	}
	close(stop)
	all.Wait()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "worst-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
