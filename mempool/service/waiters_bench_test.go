package service

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

// BenchmarkRoomComes measures the time from the release of a pool's only block until a waiting goroutine has the block. The benchmark
// needs two CPUs.
func BenchmarkRoomComes(b *testing.B) {
	svc := newService(b)
	s := open(b, svc)
	p := createPool(b, s, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 20})
	var held atomic.Pointer[Lease]
	var began atomic.Int64
	start := time.Now()
	go func() {
		for b.Context().Err() == nil {
			l := held.Swap(nil)
			if l == nil {
				continue
			}
			for came := time.Now(); time.Since(came) < 10*time.Microsecond; { // long enough for the other goroutine to wait again
			}
			began.Store(int64(time.Since(start)))
			_ = l.Release(false)
		}
	}()
	var took []time.Duration
	for b.Loop() {
		l, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1<<20), time.Hour)
		took = append(took, time.Since(start)-time.Duration(began.Load()))
		if err != nil {
			b.Fatal(err)
		}
		held.Store(&l)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2]), "wait-ns")
	b.ReportMetric(float64(took[len(took)/10]), "wait-p10-ns")
}
