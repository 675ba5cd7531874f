package service

import (
	"context"
	"testing"

	"github.com/poolbridge/poolbridge/mempool"
)

func BenchmarkAllocateRelease(b *testing.B) {
	svc := newService(b)
	s := open(b, svc)
	p := createPool(b, s, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 20})
	ctx, what := context.Background(), mempool.Bytes(1<<16)
	b.ReportAllocs()
	for b.Loop() {
		g, err := s.Allocate(ctx, p.info.ID, what, 0)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Release(false, nil, g.Info.ID); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetRelease(b *testing.B) {
	svc := newService(b)
	s := open(b, svc)
	p := createPool(b, s, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 20})
	publish(b, allocate(b, s, p, 1<<16), mempool.Publication{Name: "x"})
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		g, err := s.Get(ctx, "x", false, 0)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Release(false, nil, g.Info.ID); err != nil {
			b.Fatal(err)
		}
	}
}

// Requests of one session wait for those of the others: they all take the service's lock.
func BenchmarkAllocateReleaseOfManySessions(b *testing.B) {
	svc := newService(b)
	p := createPool(b, open(b, svc), mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 64 << 20})
	ctx, what := context.Background(), mempool.Bytes(1<<16)
	b.ReportAllocs()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		s := open(b, svc)
		for pb.Next() {
			g, err := s.Allocate(ctx, p.info.ID, what, 0)
			if err != nil {
				b.Error(err)
				return
			}
			if !g.Mapped {
				_, _, err = g.Lease.Export()
			}
			if err == nil {
				err = s.Release(false, nil, g.Info.ID)
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}
