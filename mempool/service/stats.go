package service

import (
	"cmp"
	"slices"

	"github.com/poolbridge/poolbridge/mempool"
)

// Stats counts what the session may see: the sessions of its user, and the pools that the session may see, with what is in them.
func (s *Session) Stats() mempool.ServiceStats {
	return s.svc.stats(s)
}

// Stats returns the counts of the service and of all pools.
func (s *Service) Stats() mempool.ServiceStats {
	return s.stats(nil)
}

// stats counts what the session `to` may see, or everything if `to` is nil.
func (s *Service) stats(to *Session) mempool.ServiceStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statsLocked(to)
}

// statsLocked does the same as stats. The caller holds Service.mu.
func (s *Service) statsLocked(to *Session) mempool.ServiceStats {
	st := mempool.ServiceStats{Sessions: s.sessions.len()}
	if to != nil && !to.owner() {
		st.Sessions = s.sessionsOf[to.peer.UID]
	}
	for _, p := range s.poolByID {
		if to != nil && !p.visibleTo(to) {
			continue
		}
		st.Leases, st.Buffers, st.Names = st.Leases+p.has.leases, st.Buffers+p.has.buffers, st.Names+p.has.names
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
