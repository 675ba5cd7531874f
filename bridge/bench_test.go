package bridge

import (
	"context"
	"testing"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

func BenchmarkAllocateRelease(b *testing.B) {
	_, path := serve(b, server.Config{})
	p := createPool(b, dial(b, path), hostPool("p", 1<<20))
	ctx, what := context.Background(), mempool.Bytes(1<<16)
	b.ReportAllocs()
	for b.Loop() {
		l, err := p.TryAllocate(ctx, what)
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Release(false); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetRelease(b *testing.B) {
	_, path := serve(b, server.Config{})
	p := createPool(b, dial(b, path), hostPool("p", 1<<20))
	publish(b, allocate(b, p, 1<<16), "x")
	consumer := dial(b, path)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		l, err := consumer.TryGet(ctx, "x", LeaseOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Release(false); err != nil {
			b.Fatal(err)
		}
	}
}
