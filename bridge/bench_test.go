package bridge

import (
	"context"
	"testing"

	"github.com/poolbridge/poolbridge/mempool"
)

func BenchmarkAllocateRelease(b *testing.B) {
	_, path := serve(b, ServerConfig{})
	p := createPool(b, dial(b, path), hostPool("p", 1<<20))
	ctx, what := context.Background(), mempool.Bytes(1<<16)
	b.ReportAllocs()
	for b.Loop() {
		l, err := p.Allocate(ctx, what, 0)
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Release(false); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetRelease(b *testing.B) {
	_, path := serve(b, ServerConfig{})
	p := createPool(b, dial(b, path), hostPool("p", 1<<20))
	publish(b, allocate(b, p, 1<<16), "x")
	consumer := dial(b, path)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		l, err := consumer.Get(ctx, "x", LeaseOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Release(false); err != nil {
			b.Fatal(err)
		}
	}
}
