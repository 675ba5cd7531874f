package service

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/mempool"
)

// used returns the CPU time that this process has used.
func used(b *testing.B) time.Duration {
	b.Helper()
	var r unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkALineForOneBlock lets 500 goroutines wait for a pool's only block. A goroutine that gets the block keeps it for a millisecond.
func BenchmarkALineForOneBlock(b *testing.B) {
	svc := newService(b)
	s := open(b, svc)
	p, _ := fakePool(b, s, 1024)
	var taken atomic.Int64
	var line sync.WaitGroup
	before := used(b)
	for range 500 {
		line.Go(func() {
			for taken.Add(1) <= int64(b.N) {
				l, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(1024), patience)
				if err != nil {
					b.Error(err)
					return
				}
				time.Sleep(time.Millisecond)
				if err := l.Release(false); err != nil {
					b.Error(err)
				}
			}
		})
	}
	line.Wait()
	b.ReportMetric(float64((used(b)-before).Microseconds())/float64(b.N), "µs-CPU/op")
}

// BenchmarkAskingForOneOfManyIdleBlocks measures how long the service needs to choose one block that a client must unmap, if the client
// maps 100,000 idle blocks. The service serves no other request in this time. Each iteration uses up one block, so run at most 100,000
// iterations.
func BenchmarkAskingForOneOfManyIdleBlocks(b *testing.B) {
	const blocks = 100_000
	svc := newService(b)
	p, _ := fakePool(b, open(b, svc), blocks*512)
	c := openClient(b, svc, mempool.Self())
	leases := make([]Lease, blocks)
	for i := range leases {
		leases[i] = allocate(b, c.Session, p, 512)
		mapBlock(b, leases[i])
	}
	for _, l := range leases {
		release(b, l)
	}
	for b.Loop() {
		svc.mu.Lock()
		p.retire(512, true)
		svc.mu.Unlock()
	}
	require.Len(b, c.asked(), b.N)
}
