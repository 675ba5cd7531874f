package service

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// keeps is a Store that keeps nothing.
type keeps struct{}

func (keeps) Keep(string, *os.File) error { return nil }
func (keeps) Drop(string)                 {}

func BenchmarkRequestsWithBooks(b *testing.B) {
	for _, store := range []Store{nil, keeps{}} {
		b.Run(fmt.Sprintf("%T", store), func(b *testing.B) {
			svc := New(Config{Store: store})
			defer svc.Close()
			s, err := svc.OpenSession(mempool.Self(), "", func(Notice) {})
			require.NoError(b, err)
			p, err := s.CreatePool(mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 20})
			require.NoError(b, err)
			b.ReportAllocs()
			packet, asked := uint64(0), []uint32(nil)
			for b.Loop() {
				packet++
				s.BeginRequest(Request{packet, uint32(packet)})
				g, err := s.Allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(4096), 0, 0)
				if err != nil {
					b.Fatal(err)
				}
				if asked = append(asked, uint32(packet)); len(asked) == 64 {
					s.Answered(asked)
					asked = asked[:0]
				}
				packet++
				s.BeginRequest(Request{packet, 0})
				if s.Release(false, nil, g.Grant.ID) != nil {
					b.FailNow()
				}
			}
		})
	}
}
