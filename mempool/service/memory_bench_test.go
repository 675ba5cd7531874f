package service

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// BenchmarkTakes measures how many bytes of the service's heap one lease takes, how many bytes one buffer takes, and so on: it measures
// each kind of thing of which clients can make many. The section "Limits" in docs/protocol.md has the results. Run BenchmarkTakes with
// -benchtime=20000x.
func BenchmarkTakes(b *testing.B) {
	ctx := context.Background()
	names := make([]string, b.N)
	takes := func(what string, most int, prepare func(b *testing.B, svc *Service, n int) (add func(i int))) {
		b.Run(what, func(b *testing.B) {
			svc := newService(b)
			n := min(b.N, most)
			names = names[:0]
			for i := range n {
				names = append(names, fmt.Sprintf("%032d", i))
			}
			add := prepare(b, svc, n)
			before := liveBytes()
			for i := range n {
				add(i)
			}
			b.ReportMetric(float64(int64(liveBytes()-before))/float64(n), "B/each")
		})
	}
	connect := func(b *testing.B, svc *Service) *Session {
		b.Helper()
		s, err := svc.OpenSession(mempool.Self(), "", func(Notice) {})
		require.NoError(b, err)
		return s
	}
	hostPool := func(b *testing.B, s *Session, blocks int) *Pool {
		b.Helper()
		return createPool(b, s, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: uint64(blocks) * 4096})
	}
	const any = 1 << 17
	takes("session", any, func(b *testing.B, svc *Service, n int) func(int) {
		return func(int) { connect(b, svc) }
	})
	takes("timeline", 1000, func(b *testing.B, svc *Service, n int) func(int) {
		sessions := make([]*Session, n)
		for i := range sessions {
			sessions[i] = connect(b, svc)
		}
		return func(i int) {
			_, _, err := sessions[i].Timeline()
			require.NoError(b, err)
		}
	})
	takes("pool", 1000, func(b *testing.B, svc *Service, n int) func(int) {
		s := connect(b, svc)
		return func(i int) { createPool(b, s, mempool.PoolSpec{Name: names[i], Kind: mempool.Host, MaxBytes: 4096}) }
	})
	takes("new-block-with-buffer-and-lease", any, func(b *testing.B, svc *Service, n int) func(int) {
		s := connect(b, svc)
		p := hostPool(b, s, n)
		return func(int) {
			_, _, err := allocate(b, s, p, 4096).Export()
			require.NoError(b, err)
		}
	})
	takes("buffer-and-lease", any, func(b *testing.B, svc *Service, n int) func(int) {
		s := connect(b, svc)
		p := hostPool(b, s, n)
		var leases []Lease
		for range n {
			l := allocate(b, s, p, 4096)
			_, _, err := l.Export()
			require.NoError(b, err)
			leases = append(leases, l)
		}
		for _, l := range leases {
			release(b, l)
		}
		return func(int) { allocate(b, s, p, 4096) }
	})
	takes("lease", any, func(b *testing.B, svc *Service, n int) func(int) {
		s := connect(b, svc)
		publish(b, allocate(b, s, hostPool(b, s, 1), 1), mempool.Publication{Name: "x"})
		return func(int) {
			_, err := s.getLease(ctx, "x", false, 0)
			require.NoError(b, err)
		}
	})
	takes("block-that-another-session-maps", any, func(b *testing.B, svc *Service, n int) func(int) {
		s, other := connect(b, svc), connect(b, svc)
		p := hostPool(b, s, n)
		for i := range n {
			l := allocate(b, s, p, 4096)
			_, _, err := l.Export()
			require.NoError(b, err)
			publish(b, l, mempool.Publication{Name: names[i]})
		}
		return func(i int) {
			l, err := other.getLease(ctx, names[i], false, 0)
			require.NoError(b, err)
			_, _, err = l.Export()
			require.NoError(b, err)
			release(b, l)
		}
	})
	takes("name", any, func(b *testing.B, svc *Service, n int) func(int) {
		s := connect(b, svc)
		p := hostPool(b, s, n)
		leases := make([]Lease, n)
		for i := range leases {
			leases[i] = allocate(b, s, p, 4096)
		}
		return func(i int) { publish(b, leases[i], mempool.Publication{Name: names[i]}) }
	})
	takes("channel", mempool.MaxChannels, func(b *testing.B, svc *Service, n int) func(int) {
		s := connect(b, svc)
		p := hostPool(b, s, 1)
		return func(i int) {
			_, err := s.MakeChannel(mempool.ChannelSpec{Name: names[i], Pool: p.rec.Info.ID, Capacity: 16})
			require.NoError(b, err)
		}
	})
	for role, most := range map[MemberRole]int{Producer: 63, Consumer: 1024} {
		takes(string(role), most, func(b *testing.B, svc *Service, n int) func(int) {
			s := connect(b, svc)
			ch, err := s.MakeChannel(mempool.ChannelSpec{Name: "c", Pool: hostPool(b, s, 1).rec.Info.ID, Capacity: 16})
			require.NoError(b, err)
			return func(i int) {
				if i%60 == 0 { // a session may have only mempool.MaxMembers members
					s = connect(b, svc)
				}
				m, err := s.Channel(ch.ID).Join(MemberSpec{Role: role})
				require.NoError(b, err)
				_, err = s.Channel(ch.ID).Member(m.ID).Enter()
				require.NoError(b, err)
			}
		})
	}
}
