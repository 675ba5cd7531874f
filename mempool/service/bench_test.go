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
		l, err := s.Allocate(ctx, p.info.ID, what, 0)
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Release(false); err != nil {
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
		l, err := s.Get(ctx, "x", false, 0)
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Release(false); err != nil {
			b.Fatal(err)
		}
	}
}
