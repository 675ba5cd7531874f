package service

import (
	"cmp"
	"slices"

	"github.com/poolbridge/poolbridge/mempool"
)

// Stats counts what the session may see: the sessions of its user, and the pools that the session may see, with what is in them.
func (v View) Stats() mempool.ServiceStats {
	v.svc.mu.Lock()
	defer v.svc.mu.Unlock()
	return v.statsLocked()
}

// Stats returns the counts of the service and of all pools.
func (s *Service) Stats() mempool.ServiceStats { return View{svc: s}.Stats() }

// statsLocked does the same as Stats.
func (v View) statsLocked() mempool.ServiceStats {
	s, to := v.svc, v.session
	st := mempool.ServiceStats{Sessions: s.ledger.Sessions.Len(), Guard: s.guard.state, GuardPID: s.guard.pid, Takeovers: s.takeovers}
	if to != nil && !to.rec.Owner {
		st.Sessions = s.ledger.SessionsOf(to.rec.Peer.UID)
	}
	for _, p := range s.ledger.Pools {
		if to != nil && !p.VisibleTo(to.rec) {
			continue
		}
		st.Leases, st.Buffers, st.Names = st.Leases+p.Has.Leases, st.Buffers+p.Has.Buffers, st.Names+p.Has.Names
		ps := mempool.PoolStats{Pool: p.Info, Reserved: p.Reserved, Leased: p.Leased, Cached: p.Cached, Held: p.Held, Used: p.Used, Blocks: p.Blocks}
		if to != nil {
			s.pools.of(p).recharge()
			ps.Session, _ = to.rec.Counts(p)
			ps.User = p.UserBytes(to.rec.Peer.UID)
		}
		st.Pools = append(st.Pools, ps)
	}
	slices.SortFunc(st.Pools, func(a, b mempool.PoolStats) int { return cmp.Compare(a.Pool.ID, b.Pool.ID) })
	return st
}
