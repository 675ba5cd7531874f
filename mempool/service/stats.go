package service

import (
	"cmp"
	"slices"

	"github.com/poolbridge/poolbridge/mempool"
)

// Stats returns the counts of the service, and the counts of each pool that the session may use or destroy.
func (s *Session) Stats() mempool.Stats {
	return s.svc.stats(s)
}

// Stats returns the counts of the service and of all pools.
func (s *Service) Stats() mempool.Stats {
	return s.stats(nil)
}

// stats returns the counts of the service and of pools. If the argument `to` is nil, stats describes all pools. Otherwise, it describes the
// pools that the session `to` may use or destroy.
func (s *Service) stats(to *Session) mempool.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statsLocked(to)
}

// statsLocked does the same as stats. The caller holds Service.mu.
func (s *Service) statsLocked(to *Session) mempool.Stats {
	st := mempool.Stats{Sessions: s.sessions.len(), Leases: s.leases.len(), Buffers: s.buffers.len(), Names: s.names.len()}
	for _, p := range s.poolByID {
		if to != nil && !p.access.Allows(to.peer) && !p.mayDestroy(to.peer, false) {
			continue
		}
		ps := mempool.PoolStats{Pool: p.info, Reserved: p.reserved, Leased: p.leased, Cached: p.cached, Held: p.held, Used: p.used, Blocks: p.blocks}
		if to != nil {
			p.recharge()
			ps.Session, _ = to.counts(p)
			ps.User = uint64(p.users[to.peer.UID])
		}
		st.Pools = append(st.Pools, ps)
	}
	slices.SortFunc(st.Pools, func(a, b mempool.PoolStats) int { return cmp.Compare(a.Pool.ID, b.Pool.ID) })
	return st
}
