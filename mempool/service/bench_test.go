package service

import (
	"context"
	"fmt"
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
		g, err := s.Allocate(ctx, p.rec.Info.ID, what, 0, 0)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Release(false, nil, g.Grant.ID); err != nil {
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
		g, err := s.Get(ctx, "x", false, Known{}, 0)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Release(false, nil, g.Grant.ID); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAllocateReleaseOfManySessions measures requests of sessions that work at the same time. A request of one session waits for the
// requests of other sessions, because all requests need the service's lock.
func BenchmarkAllocateReleaseOfManySessions(b *testing.B) {
	svc := newService(b)
	p := createPool(b, open(b, svc), mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 64 << 20})
	ctx, what := context.Background(), mempool.Bytes(1<<16)
	b.ReportAllocs()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		s := open(b, svc)
		for pb.Next() {
			g, err := s.Allocate(ctx, p.rec.Info.ID, what, 0, 0)
			if err != nil {
				b.Error(err)
				return
			}
			if !g.Mapped {
				_, _, err = g.Lease.Export()
			}
			if err == nil {
				err = s.Release(false, nil, g.Grant.ID)
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkListing measures, for each list, how long the service takes to return one page of the list. The service has 1,000 sessions and
// 100,000 published buffers.
func BenchmarkListing(b *testing.B) {
	const sessions, each = 1000, 100
	svc := newService(b)
	lister := open(b, svc)
	p := createPool(b, lister, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 30})
	for i := range sessions {
		s := open(b, svc)
		for j := range each {
			publish(b, allocate(b, s, p, 64), mempool.Publication{Name: fmt.Sprintf("frame %d of session %d", j, i)})
		}
	}
	listing(b, "sessions", lister.View().Sessions)
	listing(b, "buffers", lister.View().Buffers)
	listing(b, "names", lister.View().Names)
	listing(b, "leases", lister.View().Leases)
}

// listing measures how long the first pages of a list take.
func listing[T any](b *testing.B, what string, list func(after string, most int, into []T) (Page[T], error)) {
	b.Helper()
	b.Run(what, func(b *testing.B) {
		b.ReportAllocs()
		after, into := "", []T(nil)
		for b.Loop() {
			page, err := list(after, 64, into)
			if err != nil {
				b.Fatal(err)
			}
			after, into = page.Next, page.Entries
		}
	})
}
