package bridge

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// BenchmarkListsOfALargeService uses a service with 1,000 sessions and 100,000 buffers. It measures how long the service takes to return a
// page from the middle of each list, and how long it takes to return the first page of the list of buffers. It also measures the 99th
// percentile of the time of a transfer, with and without a client that asks for lists all the time.
func BenchmarkListsOfALargeService(b *testing.B) {
	const sessions, each = 1000, 100
	_, path := serve(b, server.Config{MaxSessions: sessions + 10})
	var clients []*Client
	p := createPool(b, dial(b, path), hostPool("p", 1<<30))
	for range sessions {
		c := dial(b, path)
		clients = append(clients, c)
		own, err := c.TryOpenPool(b.Context(), p.Info().Name)
		require.NoError(b, err)
		for range each {
			_, err := own.Allocate(b.Context(), mempool.Bytes(64))
			require.NoError(b, err)
		}
	}
	lister := clients[0]
	page := func(what, after string) *wire.ListReply {
		var reply wire.ListReply
		require.NoError(b, lister.session.Call(b.Context(), &wire.List{What: what, After: after}, &reply))
		return &reply
	}
	for _, what := range []string{wire.ListSessions, wire.ListBuffers, wire.ListLeases} {
		b.Run(what, func(b *testing.B) {
			after := ""
			for range 8 {
				after = page(what, after).Next
			}
			for b.Loop() {
				page(what, after)
			}
		})
	}
	b.Run("the first page of buffers", func(b *testing.B) {
		for b.Loop() {
			page(wire.ListBuffers, "")
		}
	})
	last := 0
	transfer := func(b *testing.B) {
		from, err := clients[1].TryOpenPool(b.Context(), p.Info().Name)
		require.NoError(b, err)
		var took []time.Duration
		for b.Loop() {
			last++
			begun := time.Now()
			l, err := from.Allocate(b.Context(), mempool.Bytes(64))
			require.NoError(b, err)
			name := fmt.Sprint(last)
			require.NoError(b, l.Publish(b.Context(), mempool.Publication{Name: name}))
			got, err := clients[2].TryGet(b.Context(), name, LeaseOptions{})
			require.NoError(b, err)
			require.NoError(b, got.Release(false))
			require.NoError(b, l.Release(false))
			took = append(took, time.Since(begun))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	}
	b.Run("transfer", transfer)
	b.Run("transfer beside a list", func(b *testing.B) {
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for ctx.Err() == nil {
				for range lister.Buffers(ctx) {
				}
			}
		}()
		transfer(b)
		cancel()
		<-ended
	})
}
